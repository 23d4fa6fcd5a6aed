"""Make everyday-tokenizer: a byte-level BPE that spells everyday English in few tokens (for random Llamas).

    python scripts/training/train_everyday_tokenizer.py [--output DIR]

Deterministic: the word lists of corpus/words and their inflections (corpus/everyday.py), no downloads.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parent))
from corpus import everyday
from train_tiny_gpt2 import portable, write_sums

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 16384  # the vocabulary of random:llama-100m
CONTEXT = 4096


def make() -> PreTrainedTokenizerFast:
    """Llama's three special tokens; all 256 bytes are in the vocabulary, so nothing is ever unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        itertools.chain.from_iterable(itertools.repeat(text, times) for text, times in everyday.forms()), trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "labs" / "shared" / "models" / "everyday-tokenizer")
    options = parser.parse_args()
    tokenizer = make()
    options.output.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(options.output)
    portable(options.output)
    write_sums(options.output)
    frequent = everyday.words("frequent")[:300]
    cost = sum(len(tokenizer.tokenize(word)) for word in frequent) / len(frequent)
    print(f"{len(tokenizer)} entries; {cost:.2f} tokens a word on the 300 most frequent words, each alone")


if __name__ == "__main__":
    main()
