"""A GPU in slow motion: the tokens are those of the small model, the time of a step is that of a model of a GPU.

There are two kinds of numbers for it (:class:`labsched.costs.StepCosts`). A roofline says what a card could do: a step
takes as long as the weights need to come out of memory, or the arithmetic of its tokens at the device's peak, whichever
is longer, and then as long as the keys and values that it reads need. It knows nothing of kernels that reach less than
the peak, of launches and of the host's own work. Measured costs say what a card did: they are fitted on the times of
recorded steps. The processor sleeps for the rest of the time, so many servers fit on one machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from labsched.costs import StepCosts, StepCounts

BYTES = 2  # of a number: weights, keys and values are in 16 bits


class Device(NamedTuple):
    """Peak FLOP/s of dense 16-bit matrix products, and bytes/s of memory."""

    flops: float
    bandwidth: float


DEVICES = {
    "h100": Device(989.4e12, 3.35e12),  # NVIDIA H100 SXM: its data sheet, the figures without sparsity
    "h200": Device(989.4e12, 4.8e12),  # NVIDIA H200 SXM: its data sheet
}


class DecoderShape(NamedTuple):
    """A decoder-only model of Llama's kind, by the numbers of its config.json."""

    layers: int
    width: int  # hidden_size
    kv_width: int  # of the keys of a token: num_key_value_heads x head_dim
    inner: int  # intermediate_size
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Read at every step: q and o, k and v, three of the MLP in each layer, and the head."""
        layer = 2 * self.width**2 + 2 * self.width * self.kv_width + 3 * self.width * self.inner
        return self.layers * layer + self.vocabulary * self.width

    @property
    def kv_values(self) -> int:
        """Numbers in the keys and values of one token."""
        return 2 * self.layers * self.kv_width


SHAPES = {
    "llama-2-7b": DecoderShape(32, 4096, 4096, 11008, 32000),
    "llama-3.1-8b": DecoderShape(32, 4096, 1024, 14336, 128256),
}


def counts_of(tokens: Iterable[int], contexts: Iterable[int]) -> StepCounts:
    """Count what a step computes; a request that computes one token counts as one that decodes.

    Args:
        tokens: computed for each request.
        contexts: how many tokens the last one of them sees.
    """
    decoding = prompt = context = 0
    pairs = 0.0
    for computed, seen in zip(tokens, contexts, strict=True):
        if computed:
            decoding += computed == 1
            prompt += computed if computed > 1 else 0
            context += seen
            pairs += computed * (seen - (computed - 1) / 2)  # the first one sees fewer
    return StepCounts(decoding, prompt, context, pairs=pairs)


def roofline(device: Device, shape: DecoderShape) -> StepCosts:
    """Return what a step costs where a device reaches the peaks of its data sheet.

    A token's scores and their sum take 2 x 2 operations for each number of each token that it sees.
    """
    weights = shape.parameters * BYTES / device.bandwidth
    token = 2 * shape.parameters / device.flops
    return StepCosts(
        step=weights,
        token=token,
        context=shape.kv_values * BYTES / device.bandwidth,
        bend=weights / token,
        pair=2 * shape.layers * shape.width / shape.parameters,
    )


OWN = "measured"  # its costs are in pace_table
MEASURED = {
    # vLLM 0.26 with CUDA graphs and steps decided ahead, Llama-2-7B's shape in fp16, one NVIDIA H100 SXM: the published
    # workload of lab 05 at most 8, 64 and 98 at a time. Fitted on the median times of 22 sizes of its steps: off by at
    # most 3 % where they decode, and 16 % where they have prompts (docs/develop/figures.md).
    "h100-measured": "step:6.221,prompts:31.29,decoding:0.01317,token:0.02487,context:0.000159,bend:1231"
}


@dataclass(frozen=True, slots=True)
class Pace:
    """The time of a step on a device, ``slower`` times as long."""

    costs: StepCosts
    slower: float

    @classmethod
    def of(cls, device: str, shape: str, slower: str, table: str = "") -> Pace | None:
        """Read a pace from the words of a config.pbtxt; None if ``device`` is "none" or "".

        Raises:
            ValueError: a word is unknown, or a number is out of range.
        """
        if device in ("", "none"):
            return None
        if not 0 < float(slower) < math.inf:
            raise ValueError(f"pace_slower: '{slower}' is not a number above 0")
        if device == OWN or device in MEASURED:
            try:
                return cls(StepCosts.of(MEASURED.get(device, table)), float(slower))
            except ValueError as error:
                raise ValueError(f"pace_table: {error}") from None
        if device not in DEVICES or shape not in SHAPES:
            known = ", ".join([*DEVICES, *MEASURED, OWN])
            raise ValueError(f"pace: '{device}' with '{shape}' is not known; {known}; {', '.join(SHAPES)}")
        return cls(roofline(DEVICES[device], SHAPES[shape]), float(slower))

    def seconds(self, tokens: Iterable[int], contexts: Iterable[int]) -> float:
        """Return the time of a step (:func:`counts_of`) on the device itself; 0.0 if nothing is computed."""
        counts = counts_of(tokens, contexts)
        return self.costs.seconds(counts) if counts.tokens else 0.0

    def wait(self, tokens: Iterable[int], contexts: Iterable[int], began: float) -> float:
        """Sleep until a step that began then is over, in slow motion. Returns the seconds that it should take."""
        whole = self.seconds(tokens, contexts) * self.slower
        time.sleep(max(0.0, began + whole - time.monotonic()))
        return whole
