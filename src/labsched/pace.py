"""A GPU in slow motion: the tokens are those of the small model, the time of a step is that of a model of a GPU.

The time is a roofline (Williams et al., CACM 2009): a step takes as long as the weights need to come out of memory, or
the arithmetic of its tokens at the device's peak, whichever is longer, and then as long as the keys and values that it
reads need. It knows nothing of kernels that reach less than the peak, of launches and of the host's own work, so a real
GPU is slower. The processor sleeps for the rest of the time, so many servers fit on one machine.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

BYTES = 2  # of a number: weights, keys and values are in 16 bits


class Device(NamedTuple):
    """Peak FLOP/s of dense 16-bit matrix products, and bytes/s of memory."""

    flops: float
    bandwidth: float


DEVICES = {
    "h100": Device(989.4e12, 3.35e12),  # NVIDIA H100 SXM: its data sheet, the figures without sparsity
    "h200": Device(989.4e12, 4.8e12),  # NVIDIA H200 SXM: its data sheet
}


class Decoder(NamedTuple):
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


SHAPES = {"llama-2-7b": Decoder(32, 4096, 4096, 11008, 32000), "llama-3.1-8b": Decoder(32, 4096, 1024, 14336, 128256)}


class Work(NamedTuple):
    """What a step does for one request: it computes ``tokens``, the last of which sees ``context`` tokens."""

    tokens: int
    context: int


@dataclass(slots=True)
class Pace:
    """The time of a step on ``device`` for ``shape``, ``slower`` times as long."""

    device: Device
    shape: Decoder
    slower: float

    @classmethod
    def of(cls, device: str, shape: str, slower: str) -> "Pace | None":
        """From the words of a config.pbtxt; None where ``device`` is "none" or "". Raises ValueError for others."""
        if device in ("", "none"):
            return None
        if device not in DEVICES or shape not in SHAPES:
            raise ValueError(f"pace: '{device}' with '{shape}' is not known; {', '.join(DEVICES)}; {', '.join(SHAPES)}")
        return cls(DEVICES[device], SHAPES[shape], float(slower))

    def seconds(self, work: Iterable[Work]) -> float:
        """The time of a step on the device itself."""
        done = [one for one in work if one.tokens]
        if not done:
            return 0.0
        tokens = sum(one.tokens for one in done)
        # A token's scores and their sum: 2 x 2 operations for each number of each token that it sees. The first token
        # of a piece sees fewer than the last.
        seen = sum(one.tokens * (one.context - (one.tokens - 1) / 2) for one in done)
        flops = 2 * self.shape.parameters * tokens + 4 * self.shape.layers * self.shape.width * seen
        weights = self.shape.parameters * BYTES / self.device.bandwidth
        kv = sum(one.context for one in done) * self.shape.kv_values * BYTES / self.device.bandwidth
        return max(weights, flops / self.device.flops) + kv

    def wait(self, work: Iterable[Work], began: float) -> float:
        """Sleep until a step that began then is over, in slow motion. Returns the seconds that it should take."""
        whole = self.seconds(work) * self.slower
        time.sleep(max(0.0, began + whole - time.monotonic()))
        return whole
