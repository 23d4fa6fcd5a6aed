"""The labs' batched decode loop in plain Python, without Triton: what Triton's cost is measured against.

    python benchmarks/decode_loop.py FOLDER [--batch 8] [--prompt 128] [--new 64] [--threads 2]

FOLDER holds a GPT-2 in Hugging Face's layout. Prints tokens/s with and without the KV cache.
"""

import argparse
import random
import time
from dataclasses import dataclass
from typing import Any

from labserve.gpt2.decoders import CachedDecoder, Decoder, RecomputingDecoder, step
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence
from labserve.text.detok import Detokenizer
from labserve.text.prompts import open_tokenizer
from labserve.text.sampling import Sampler


@dataclass(frozen=True)
class Loop:
    """One run: how many tokens, in what time."""

    tokens: int
    seconds: float  # from the first step to the last token
    first: float  # of these, the first step: the prompts, and one token each
    steps: int  # all of them

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def step(self) -> float:
        """Seconds of a step after the first, on average; there must be more than one."""
        return (self.seconds - self.first) / (self.steps - 1)


def run(decoder: Decoder, tokenizer: Any, vocabulary: int, *, batch: int, prompt: int, new: int) -> Loop:
    """Continue `batch` random prompts of `prompt` tokens by `new` tokens each, greedily, as one batch.

    Each step does what a model.py does for it (decode, choose, detokenize), except to talk to Triton.
    """
    chance = random.Random(0)
    sequences = [
        Sequence(
            ids=[chance.randrange(vocabulary) for _ in range(prompt)],
            prompt=prompt,
            limit=prompt + new,
            eos=None,
            sampler=Sampler(),
            detokenizer=Detokenizer(tokenizer),
        )
        for _ in range(batch)
    ]
    times = [time.perf_counter()]
    while not sequences[0].finished:
        step(decoder, sequences)
        times.append(time.perf_counter())
    for sequence in sequences:
        decoder.release(sequence)
    return Loop(batch * new, times[-1] - times[0], times[1] - times[0], steps=new)


def measure(folder: str, kv_cache: bool, *, batch: int = 8, prompt: int = 128, new: int = 64, threads: int = 2) -> Loop:
    """A warm-up of two tokens, then one run of the loop over the model in `folder`."""
    tokenizer = open_tokenizer(folder)
    model = GPT2(folder, threads=threads)
    decoder = CachedDecoder(model, batch) if kv_cache else RecomputingDecoder(model)
    run(decoder, tokenizer, model.vocabulary, batch=batch, prompt=prompt, new=2)
    return run(decoder, tokenizer, model.vocabulary, batch=batch, prompt=prompt, new=new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--batch", type=int, default=8, help="sequences decoded together")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate for each")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    rates = []
    for kv_cache in (False, True):
        loop = measure(**vars(asked), kv_cache=kv_cache)
        rates.append(loop.tokens_per_second)
        print(
            f"kv cache {'on ' if kv_cache else 'off'}: {loop.tokens_per_second:7.1f} tokens/s"
            f" (first step {loop.first * 1e3:.0f} ms, then {loop.step * 1e3:.1f} ms a step)",
            flush=True,
        )
    print(f"on / off: {rates[1] / rates[0]:.1f}")


if __name__ == "__main__":
    main()
