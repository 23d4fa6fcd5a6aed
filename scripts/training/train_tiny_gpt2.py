"""Train tiny-gpt2: a real GPT-2, small enough to ship, that continues the labs' prompts in readable English.

    python scripts/training/train_tiny_gpt2.py [--output DIR] [--steps N]

Deterministic: generated text (corpus/english.py), one seed, no downloads. Prints the held-out loss beside that
of a unigram and a bigram model of the same tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parent))
from corpus import english

ROOT = Path(__file__).resolve().parents[2]
EOS = "<|endoftext|>"
VOCABULARY = 1536
CONTEXT = 1024
SEED = 42


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE, as GPT-2's: all 256 bytes are in it, so nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=20,  # rare words stay in pieces, some of their characters too
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=EOS,
        eos_token=EOS,
        unk_token=EOS,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> torch.Tensor:
    """All documents in one row of ids, each ended by EOS."""
    ids: list[int] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch(list(texts)):
        ids += [*encoding.ids, tokenizer.eos_token_id]
    return torch.tensor(ids)


def train(model: GPT2LMHeadModel, data: torch.Tensor, steps: int, report_every: int = 100) -> None:
    """Train with AdamW, a warm-up and a cosine. Short windows are put at random positions of the context, so that every
    position is learned; every eighth window is as long as the context, so that far references are learned too."""
    rng = random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warm) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1, step / steps)))),
    )
    model.train()
    began = time.monotonic()
    for step in range(steps):
        rows, width = (4, CONTEXT) if step % 8 == 7 else (32, 128)
        starts = [rng.randrange(len(data) - width) for _ in range(rows)]
        batch = torch.stack([data[start : start + width] for start in starts])
        offset = torch.tensor([[rng.randrange(CONTEXT - width + 1)] for _ in range(rows)])
        loss = model(input_ids=batch, position_ids=offset + torch.arange(width), labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % report_every == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.3f}  {time.monotonic() - began:.0f} s", flush=True)
    model.eval()


@torch.inference_mode()
def held_out_loss(model: GPT2LMHeadModel, data: torch.Tensor, width: int = 512, rows: int = 24) -> float:
    """Mean negative log-likelihood per token, in nats."""
    windows = [data[row * width : (row + 1) * width][None] for row in range(rows)]
    losses = [model(input_ids=window, labels=window).loss.item() for window in windows]
    return sum(losses) / len(losses)


def baselines(data: torch.Tensor, held_out: torch.Tensor, vocabulary: int) -> tuple[float, float]:
    """Held-out loss of a unigram and of an interpolated bigram model (nats per token)."""
    ids, test = data.tolist(), held_out.tolist()
    single, pairs = Counter(ids), Counter(itertools.pairwise(ids))
    total = len(ids)

    def unigram(b: int) -> float:
        return (single[b] + 1) / (total + vocabulary)

    def bigram(a: int, b: int) -> float:
        return 0.98 * pairs[a, b] / max(1, single[a]) + 0.02 * unigram(b)

    one = -sum(math.log(unigram(b)) for b in test) / len(test)
    two = -sum(math.log(bigram(a, b)) for a, b in itertools.pairwise(test)) / (len(test) - 1)
    return one, two


def portable(folder: Path) -> None:
    """Rewrite a tokenizer's files so that old libraries, as in NVIDIA's images, can read them, and every user may.

    The tokenizer's class gets the name that transformers 4 and 5 share. Merges become texts: only tokenizers 0.20 and
    newer read pairs.
    """
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    merges = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    path.write_text(json.dumps(tokenizer, indent=2, ensure_ascii=False), encoding="utf-8")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.pop("backend", None)
    path.write_text(json.dumps(settings, indent=2) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)


def write_sums(folder: Path) -> None:
    """SHA256SUMS, in sha256sum's own format."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix in (".json", ".safetensors"))
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in files]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "labs" / "shared" / "models" / "tiny-gpt2")
    parser.add_argument("--steps", type=int, default=900)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    began = time.monotonic()
    texts = list(english.documents(SEED, 4000))
    tokenizer = train_tokenizer(texts)
    data = encode(tokenizer, texts)
    held_out = encode(tokenizer, english.documents(SEED + 1, 60))
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=CONTEXT,
        n_embd=160,
        n_layer=4,
        n_head=5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPT2LMHeadModel(config)
    size = sum(p.numel() for p in model.parameters())
    print(f"{len(data):,} tokens, {len(tokenizer)} entries, {size / 1e6:.2f}M parameters", flush=True)
    train(model, data, options.steps)
    one, two = baselines(data, held_out, len(tokenizer))
    loss = held_out_loss(model, held_out)
    print(f"held-out loss in nats per token: model {loss:.3f}, bigram {two:.3f}, unigram {one:.3f}")
    options.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    portable(options.output)
    write_sums(options.output)
    for prompt in ("Programming in C++ is like", "I have lived in Seoul", "My favourite food is", "Once upon a time"):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=tokenizer.eos_token_id)
        print(f"> {tokenizer.decode(out[0])}\n")
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
