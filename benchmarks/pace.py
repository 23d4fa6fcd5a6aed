"""The model of a GPU beside the GPU: the same steps, computed on the one that is here.

The decoder has random weights, and of a layer what takes time: its matrix products, rotary embeddings, attention over
keys and values of a whole context, and a memory of its own for each layer's, so that no cache serves them twice. Each
step is measured launched from Python, kernel by kernel, and as a CUDA graph, in which the host has no part.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from labkit.errors import LabError
from labkit.tables import format_table
from labsched.pace import DEVICES, SHAPES, DecoderShape, Pace, roofline

CONTEXT = 800  # tokens, as in the published test of lab 05
STEPS = [("decode", batch, 1, CONTEXT) for batch in (1, 8, 32, 64)] + [
    ("prompt", 1, tokens, tokens) for tokens in (128, CONTEXT, 2048)
]
TIMES = 20  # each step is computed; the median counts
HEAD = 128  # numbers of an attention head, in both shapes
REMEDY = "an H100 or H200, and a CUDA build of PyTorch (docs/operate/gpu.md)"
Step = Callable[[], torch.Tensor]


def run() -> dict[str, Any]:
    """Raises LabError if this machine has no GPU of the device table."""
    if not torch.cuda.is_available():
        raise LabError(
            "there is no GPU to compare with", f"PyTorch {torch.__version__} finds none", REMEDY, code="gpu-missing"
        )
    name = torch.cuda.get_device_name()
    device = next((key for key in DEVICES if key.upper() in name), "")
    if not device:
        raise LabError(
            f"{name} is not in the table of devices", f"it knows {', '.join(DEVICES)}", REMEDY, code="device-unknown"
        )
    found: list[dict[str, Any]] = []
    for shape, decoder in SHAPES.items():
        model = Model(decoder, "cuda")
        pace = Pace(roofline(DEVICES[device], decoder), 1.0)
        for kind, batch, tokens, context in STEPS:
            said = 1e3 * pace.seconds([tokens] * batch, [context] * batch)
            step = model.step(batch, tokens, context)
            graph, launched = graphed(step), timed(step)
            one = {"shape": shape, "kind": kind, "batch": batch, "tokens": tokens, "context": context}
            found.append({**one, "model_ms": said, "graph_ms": graph, "launched_ms": launched})
            print(f"{shape}, {kind} {batch} x {tokens}: {said:.2f} ms said, {graph:.2f}, {launched:.2f}", flush=True)
            del step
        del model
        torch.cuda.empty_cache()
    peaks = {"copied_bytes_per_s": copied(), "flops": multiplied()}
    rows = [
        (
            one["shape"],
            f"{one['batch']} of decoding" if one["kind"] == "decode" else f"a prompt of {one['tokens']:,}",
            f"{one['model_ms']:.2f}",
            *(f"{one[key]:.2f} ({one[key] / one['model_ms']:.2f}x)" for key in ("graph_ms", "launched_ms")),
        )
        for one in found
    ]
    head = ("shape", "step", "model, ms", "graph, ms", "launched, ms")
    print(f"{name}, PyTorch {torch.__version__}, context {CONTEXT}, medians of {TIMES}")
    print(format_table(rows, head, right=range(2, 5)))
    of = DEVICES[device]
    print(f"peaks: {peaks['copied_bytes_per_s'] / of.bandwidth:.2f} of the data sheet's bytes/s in a copy, ", end="")
    print(f"{peaks['flops'] / of.flops:.2f} of its FLOP/s in a product")
    return {"gpu": name, "torch": torch.__version__, "steps": found, "peaks": peaks}


class Model:
    """A Llama's layers and head with random weights in 16 bits, and the numbers of ``decoder``."""

    def __init__(self, decoder: DecoderShape, device: str) -> None:
        self.width, self.layers, self.device = decoder.width, decoder.layers, device
        self.groups, inner = decoder.kv_width // HEAD, decoder.inner

        def weights(rows: int, columns: int) -> torch.Tensor:
            found = torch.empty(rows, columns, dtype=torch.float16, device=device)
            return found.normal_(std=rows**-0.5)

        self.weights = [
            (
                weights(self.width, self.width + 2 * decoder.kv_width),
                weights(self.width, self.width),
                weights(self.width, 2 * inner),
                weights(inner, self.width),
            )
            for _ in range(self.layers)
        ]
        self.head = weights(self.width, decoder.vocabulary)

    @torch.inference_mode()
    def step(self, batch: int, tokens: int, context: int) -> Step:
        """A step of ``batch`` requests: each computes its last ``tokens`` of ``context``; all of them, or one."""
        assert tokens in (1, context)
        half = {"dtype": torch.float16, "device": self.device}
        given = torch.randn(batch, tokens, self.width, **half)
        turn = torch.randn(2, tokens, HEAD, **half)
        memory = torch.randn(self.layers, 2, batch, self.groups, context, HEAD, **half)

        def rotated(x: torch.Tensor) -> torch.Tensor:
            low, high = x.chunk(2, -1)
            return x * turn[0] + torch.cat((-high, low), -1) * turn[1]

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, tokens, -1, HEAD).transpose(1, 2)

        @torch.inference_mode()
        def compute() -> torch.Tensor:
            x = given
            kv = self.groups * HEAD
            for (qkv, out, up, down), (keys, values) in zip(self.weights, memory, strict=True):
                q, k, v = (functional.rms_norm(x, (self.width,)) @ qkv).split((self.width, kv, kv), -1)
                keys[..., -tokens:, :] = rotated(heads(k))
                values[..., -tokens:, :] = heads(v)
                seen = functional.scaled_dot_product_attention(
                    rotated(heads(q)), keys, values, is_causal=tokens > 1, enable_gqa=self.groups * HEAD < self.width
                )
                x = x + seen.transpose(1, 2).reshape(batch, tokens, self.width) @ out
                gate, through = (functional.rms_norm(x, (self.width,)) @ up).chunk(2, -1)
                x = x + (functional.silu(gate) * through) @ down
            return (functional.rms_norm(x[:, -1], (self.width,)) @ self.head).argmax(-1)

        return compute


def timed(step: Step) -> float:
    """Milliseconds of a step by the wall clock, its result awaited (median)."""

    def once() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    once(), once()
    return 1e3 * statistics.median(once() for _ in range(TIMES))


def graphed(step: Step) -> float:
    """The same, of the step recorded as a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step(), step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return kept

    return timed(replay)


def copied() -> float:
    """Bytes read and written a second by a copy inside the GPU's memory."""
    one = torch.empty(2**31, dtype=torch.int8, device="cuda")
    other = torch.empty_like(one)
    return 2 * one.numel() / (timed(lambda: other.copy_(one)) / 1e3)


def multiplied() -> float:
    """FLOP/s of a product of two 16-bit matrices of 8,192 by 8,192 random numbers."""
    side = 8192
    one, other = torch.randn(2, side, side, dtype=torch.float16, device="cuda")
    return 2 * side**3 / (timed(lambda: one @ other) / 1e3)
