"""GPT-2s of two layers with random weights, one with a small byte-level BPE trained on a few sentences."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

from labserve.gpt2.sequences import Sequence
from labserve.text.sampling import Sampler

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
    ends = {"bos_token_id": eos, "eos_token_id": eos}
    return random_gpt2(folder, 7, vocab_size=340, n_positions=128, n_embd=48, initializer_range=0.3, **ends)


def random_gpt2(folder: Path, seed: int, **shape: Any) -> Path:
    """Write a model alone to `folder`, and return it."""
    torch.manual_seed(seed)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, **shape)).save_pretrained(folder)
    return folder


class Mute:
    """A detokenizer for ids that no tokenizer knows."""

    def add(self, token: int, last: bool = False) -> str:
        return ""


def sequence(ids: list[int], tokens: int = 9, sampler: Sampler | None = None) -> Sequence:
    """So many tokens after a prompt, without a text."""
    detokenizer: Any = Mute()
    return Sequence(list(ids), len(ids), len(ids) + tokens, None, sampler or Sampler(), detokenizer)
