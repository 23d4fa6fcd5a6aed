"""Train tiny-llama and tiny-llama-draft: a Llama, and a small one that guesses what it will say next.

    python scripts/training/train_tiny_llama_pair.py [--output DIR] [--steps N] [--draft-steps N] [--threads N]

Deterministic: generated text (corpus/english.py), one seed, no downloads; the tokenizer is that of
models/tiny-gpt2. The draft learns from the target's own probabilities (distillation), so that the two agree. Prints the
held-out loss of both beside that of a unigram and a bigram model, and how often the draft is right.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import kl_div, log_softmax
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parent))
import train_tiny_gpt2 as trainer
from corpus import english

PROMPTS = ("I have lived in Seoul", "Once upon a time", "My favourite food is", "Programming in Rust is like")
GUESSES = 4  # tokens that the draft proposes at a time, in the figures below


def llama(tokenizer: PreTrainedTokenizerFast, width: int, layers: int, heads: int) -> LlamaForCausalLM:
    """A Llama with tied embeddings; its feed-forward is 8/3 as wide as the rest, as Llama's own."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=trainer.CONTEXT,
            tie_word_embeddings=True,
            hidden_size=width,
            intermediate_size=width * 8 // 3,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
        )
    )


def distil(draft: LlamaForCausalLM, target: LlamaForCausalLM, data: torch.Tensor, steps: int) -> None:
    """Have the draft give the target's probabilities for every next token; windows as in the target's training."""
    rng = random.Random(trainer.SEED)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=4e-3, betas=(0.9, 0.98))
    began = time.monotonic()
    for step in range(steps):
        warm, cosine = min(1.0, 20 * (step + 1) / steps), 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = 4e-3 * warm * (0.02 + 0.98 * cosine)
        rows, width = (4, 512) if step % 8 == 7 else (32, 128)
        starts = [rng.randrange(len(data) - width) for _ in range(rows)]
        batch = torch.stack([data[start : start + width] for start in starts])
        with torch.inference_mode():
            of_target = log_softmax(target(input_ids=batch).logits, -1)
        of_draft = log_softmax(draft(input_ids=batch).logits, -1)
        loss = kl_div(of_draft, of_target.clone(), log_target=True, reduction="sum") / batch.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:5d}  divergence {loss.item():.3f}  {time.monotonic() - began:.0f} s", flush=True)
    draft.eval()


@torch.inference_mode()
def agreement(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, held_out: torch.Tensor, prompts: int = 24
) -> tuple[float, float]:
    """Along the target's greedy texts: how often the draft names the next token, and tokens per step of the target.

    A step takes what the draft has right of its next ``GUESSES`` tokens, and one token of the target's own.
    """
    right, tokens, steps = 0, 0, 0
    for number in range(prompts):
        prompt = held_out[number * 300 : number * 300 + 40][None]
        text = target.generate(prompt, max_new_tokens=80, min_new_tokens=80, do_sample=False, pad_token_id=0)
        guessed = draft(input_ids=text).logits[0].argmax(-1)[39:-1] == text[0, 40:]
        right, tokens = right + int(guessed.sum()), tokens + len(guessed)
        at = 0
        while at < len(guessed):
            streak = 0
            while streak < GUESSES and at + streak < len(guessed) and guessed[at + streak]:
                streak += 1
            at, steps = at + streak + 1, steps + 1
    return right / tokens, tokens / steps


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """In Hugging Face's layout, with the tokenizer of tiny-gpt2."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(trainer.ROOT / "labs" / "shared" / "models" / "tiny-gpt2" / name, folder / name)
    for file in folder.iterdir():
        file.chmod(0o644)
    trainer.write_sums(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=trainer.ROOT / "labs" / "shared" / "models", help="the folder of both models"
    )
    parser.add_argument("--steps", type=int, default=800, help="of the target's training")
    parser.add_argument("--draft-steps", type=int, default=250)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: all")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(trainer.SEED)
    began = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(trainer.ROOT / "labs" / "shared" / "models" / "tiny-gpt2")
    data = trainer.encode(tokenizer, english.documents(trainer.SEED, 4000))
    held_out = trainer.encode(tokenizer, english.documents(trainer.SEED + 1, 60))
    target, draft = llama(tokenizer, 128, 5, 4), llama(tokenizer, 32, 1, 2)
    for name, model in (("target", target), ("draft", draft)):
        print(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    trainer.train(target, data, options.steps)
    save(target, options.output / "tiny-llama")
    distil(draft, target, data, options.draft_steps)
    save(draft, options.output / "tiny-llama-draft")
    one, two = trainer.baselines(data, held_out, len(tokenizer))
    losses = ", ".join(
        f"{name} {trainer.held_out_loss(model, held_out):.3f}" for name, model in (("target", target), ("draft", draft))
    )
    print(f"held-out loss in nats per token: {losses}, bigram {two:.3f}, unigram {one:.3f}")
    right, tokens = agreement(draft, target, held_out)
    print(f"the draft names {right:.0%} of the target's greedy tokens; {GUESSES} guesses: {tokens:.2f} tokens a step")
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = target.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=tokenizer.eos_token_id)
        print(f"> {tokenizer.decode(out[0])}\n")
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
