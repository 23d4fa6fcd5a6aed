"""Train tiny-codegen: a CodeGen model, small enough to ship, that writes small Python functions.

    python scripts/training/train_tiny_codegen.py [--output DIR] [--steps N]

Deterministic: generated code (corpus/functions.py), one seed, no downloads. Prints the held-out loss beside
that of a unigram and a bigram model of the same tokens. The training itself is that of tiny-gpt2.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from transformers import CodeGenConfig, CodeGenForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent))
import train_tiny_gpt2 as trainer
from corpus import functions

PROMPTS = ("def hello_world():", "def add(a, b):", "def fibonacci(n):", "# return the maximum of a list\ndef")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=trainer.ROOT / "labs" / "shared" / "models" / "tiny-codegen")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(trainer.SEED)
    began = time.monotonic()
    texts = list(functions.documents(trainer.SEED, 5000))
    tokenizer = trainer.train_tokenizer(texts)
    data = trainer.encode(tokenizer, texts)
    held_out = trainer.encode(tokenizer, functions.documents(trainer.SEED + 1, 120))
    config = CodeGenConfig(
        vocab_size=len(tokenizer),
        n_positions=trainer.CONTEXT,
        n_ctx=trainer.CONTEXT,
        n_embd=128,
        n_layer=4,
        n_head=4,
        rotary_dim=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = CodeGenForCausalLM(config)
    size = sum(p.numel() for p in model.parameters())
    print(f"{len(data):,} tokens, {len(tokenizer)} entries, {size / 1e6:.2f}M parameters", flush=True)
    trainer.train(model, data, options.steps)
    one, two = trainer.baselines(data, held_out, len(tokenizer))
    loss = trainer.held_out_loss(model, held_out)
    print(f"held-out loss in nats per token: model {loss:.3f}, bigram {two:.3f}, unigram {one:.3f}")
    options.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    trainer.portable(options.output)
    trainer.write_sums(options.output)
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=tokenizer.eos_token_id)
        print(f"{tokenizer.decode(out[0])}\n---")
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
