"""A GPT-2 of two layers with random weights, and a small byte-level BPE trained on a few sentences."""

from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and then it sleeps.",
    "I have lived in Seoul for ten years; she has lived in Lisbon.",
    "Programming in C++ is like building a house from very small stones.",
]


def make(folder: Path) -> Path:
    """Write model and tokenizer to `folder`, as Hugging Face would, and return it."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(SENTENCES, vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer = GPT2TokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    eos = tokenizer.eos_token_id
    # More ids than the tokenizer knows, and weights wide enough that the best two tokens are seldom close.
    config = GPT2Config(
        vocab_size=340,
        n_positions=128,
        n_embd=48,
        n_layer=2,
        n_head=4,
        initializer_range=0.3,
        bos_token_id=eos,
        eos_token_id=eos,
    )
    torch.manual_seed(7)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
