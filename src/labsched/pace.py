"""A GPU in slow motion: the tokens are those of the small model, the time of a step is that of a model of a GPU.

There are two kinds of such models. A roofline (Williams et al., CACM 2009) says what a card could do: a step takes as
long as the weights need to come out of memory, or the arithmetic of its tokens at the device's peak, whichever is
longer, and then as long as the keys and values that it reads need. It knows nothing of kernels that reach less than the
peak, of launches and of the host's own work. A table says what a card did: the times of recorded steps. The processor
sleeps for the rest of the time, so many servers fit on one machine.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
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


class StepWork(NamedTuple):
    """What a step does for one request: it computes ``tokens``; the last of them sees ``context`` tokens."""

    tokens: int
    context: int


Knots = tuple[tuple[float, float], ...]  # (size, seconds), by size


class DeviceTable(NamedTuple):
    """Measured times of steps: of one model, served by one engine on one device."""

    decode: Knots  # by the requests of a step in which each computes one token, without what their context costs
    prompt: Knots  # the same by the tokens of a step with prompts
    token_s: float  # seconds for each token of context, of every request

    @classmethod
    def of(cls, text: str) -> "DeviceTable":
        """From a line such as "1:6.1,64:7/512:25,2048:70/0.16": milliseconds by size, and microseconds of a token.

        Raises:
            ValueError: the line has another form.
        """
        try:
            decode, prompt, token_us = text.split("/")
            table = cls(_knots(decode), _knots(prompt), float(token_us) / 1e6)
        except ValueError:
            raise ValueError(f"pace_table: '{text}' is not like 1:6.1,64:7/512:25,2048:70/0.16") from None
        for knots in (table.decode, table.prompt):
            sizes = [size for size, _ in knots]
            if sizes != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"pace_table: sizes go up, from 1: {', '.join(f'{size:g}' for size in sizes)}")
        times = [table.token_s, *(seconds for _, seconds in table.decode + table.prompt)]
        if not all(0 <= seconds < math.inf for seconds in times):
            raise ValueError("pace_table: a time is a number, and not less than 0")
        return table

    @property
    def text(self) -> str:
        """The table as :meth:`of` reads it."""
        decode, prompt = (
            ",".join(f"{size:g}:{1e3 * seconds:.4g}" for size, seconds in knots) for knots in (self.decode, self.prompt)
        )
        return f"{decode}/{prompt}/{1e6 * self.token_s:.3g}"

    def seconds(self, work: Sequence[StepWork]) -> float:
        """The time of a step in which every request has tokens to compute."""
        tokens = sum(request.tokens for request in work)
        knots = self.decode if tokens == len(work) else self.prompt
        return interpolate(knots, tokens) + self.token_s * sum(request.context for request in work)


def _knots(text: str) -> Knots:
    pairs = (knot.split(":") for knot in text.split(","))
    return tuple((float(size), float(ms) / 1e3) for size, ms in pairs)


def interpolate(knots: Knots, size: float) -> float:
    """The seconds for a size: on the line between its neighbours; below the first as that, above the last as steep.

    >>> knots = ((2, 6.0), (4, 8.0))
    >>> interpolate(((1, 6.0), (2, 7.0), (4, 8.0)), 3), interpolate(knots, 1), interpolate(knots, 6)
    (7.5, 6.0, 10.0)
    """
    if size <= knots[0][0] or len(knots) == 1:
        return knots[0][1]
    place = min(bisect_left(knots, (size,)), len(knots) - 1)
    (low, low_s), (high, high_s) = knots[place - 1 : place + 1]
    return max(0.0, low_s + (high_s - low_s) * (size - low) / (high - low))


OWN = "measured"  # the table is in pace_table
TABLES = {
    # vLLM 0.26 with CUDA graphs and steps decided ahead, Llama-2-7B's shape in fp16, one NVIDIA H100 SXM: the published
    # workload of lab 05 at most 8, 64 and 98 at a time (docs/develop/figures.md), by `labctl pace measure`.
    "h100-measured": (
        "1:6.135,2:6.187,3:6.33,4:6.379,5:6.302,8:6.417,10:6.441,16:6.24,22:6.488,34:6.633,45:6.862,64:7.105,95:7.455"
        "/409:38.02,555:38.08,745:35.9,1015:38.38,1344:37.57,1829:62.42,3062:78.78,6659:172,7167:185.4/0.159"
    )
}
MEASURED = SHAPES["llama-2-7b"]  # the shape that the tables above were measured with


@dataclass(slots=True)
class Pace:
    """The time of a step on ``device`` for ``shape``, ``slower`` times as long; a table is of one shape only."""

    device: Device | DeviceTable
    shape: DecoderShape
    slower: float

    @classmethod
    def of(cls, device: str, shape: str, slower: str, table: str = "") -> "Pace | None":
        """From the words of a config.pbtxt; None if ``device`` is "none" or "". Raises ValueError for others."""
        if device in ("", "none"):
            return None
        if not 0 < float(slower) < math.inf:
            raise ValueError(f"pace_slower: '{slower}' is not a number above 0")
        if device == OWN or device in TABLES:
            return cls(DeviceTable.of(TABLES.get(device, table)), MEASURED, float(slower))
        if device not in DEVICES or shape not in SHAPES:
            known = ", ".join([*DEVICES, *TABLES, OWN])
            raise ValueError(f"pace: '{device}' with '{shape}' is not known; {known}; {', '.join(SHAPES)}")
        return cls(DEVICES[device], SHAPES[shape], float(slower))

    def seconds(self, work: Iterable[StepWork]) -> float:
        """The time of a step on the device itself."""
        computed = [request for request in work if request.tokens]
        if not computed:
            return 0.0
        if isinstance(self.device, DeviceTable):
            return self.device.seconds(computed)
        tokens = sum(request.tokens for request in computed)
        # A token's scores and their sum: 2 x 2 operations for each number of each token that it sees. The first token
        # of a piece sees fewer than the last.
        seen = sum(request.tokens * (request.context - (request.tokens - 1) / 2) for request in computed)
        flops = 2 * self.shape.parameters * tokens + 4 * self.shape.layers * self.shape.width * seen
        weights = self.shape.parameters * BYTES / self.device.bandwidth
        kv = sum(request.context for request in computed) * self.shape.kv_values * BYTES / self.device.bandwidth
        return max(weights, flops / self.device.flops) + kv

    def wait(self, work: Iterable[StepWork], began: float) -> float:
        """Sleep until a step that began then is over, in slow motion. Returns the seconds that it should take."""
        whole = self.seconds(work) * self.slower
        time.sleep(max(0.0, began + whole - time.monotonic()))
        return whole
