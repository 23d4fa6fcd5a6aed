"""GPT-2 itself (OpenAI, 2019), computed from a Hugging Face folder. The caller decides which tokens attend to which.

It is written out, because a learner can read it in a minute, and because transformers would add seconds to every start.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from labserve.gpt2.linear import Linear, precision_of, shortfall
from labserve.processor import threads_of

#: (layer, query, key, value) to the output of attention; all of them are [..., tokens, heads, head_dim].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Affine = tuple[Tensor, Tensor]  # weight and bias


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """The weights of one layer."""

    ln_1: Affine
    attention: Linear  # queries, keys and values in one matrix
    projection: Linear
    ln_2: Affine
    up: Linear
    down: Linear


class GPT2:
    """The model of one folder. `precision` is a word of `labserve.gpt2.linear`; 0 threads: by the size of the model.

    Raises:
        ValueError: the folder holds another kind of model, or a variant of this one; there is no such precision.
        OSError, KeyError: a file or a weight is missing.
    """

    def __init__(self, folder: str, device: str = "cpu", threads: int = 1, precision: str = "auto") -> None:
        torch.set_num_threads(threads_of(threads, folder))
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        _refuse_others(config)
        tensors = _tensors(Path(folder))
        fp32_bytes = 4 * sum(tensor.numel() for tensor in tensors.values())
        chosen = precision_of(precision, device, fp32_bytes)
        self.shortfall = shortfall(chosen)
        self._kept, self.dtype = chosen
        weights: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            weights[name.removeprefix("transformer.")] = tensor.to(device, self._kept).to(self.dtype)

        def affine(name: str) -> Affine:
            return weights[f"{name}.weight"], weights[f"{name}.bias"]

        def block(name: str) -> _LayerWeights:
            ln_1, ln_2 = affine(f"{name}.ln_1"), affine(f"{name}.ln_2")
            attention = Linear(*affine(f"{name}.attn.c_attn"))
            projection = Linear(*affine(f"{name}.attn.c_proj"))
            up, down = Linear(*affine(f"{name}.mlp.c_fc")), Linear(*affine(f"{name}.mlp.c_proj"))
            return _LayerWeights(ln_1, attention, projection, ln_2, up, down)

        self.layers, self.heads = int(config["n_layer"]), int(config["n_head"])
        self.context, self.end_id = int(config["n_positions"]), config.get("eos_token_id")
        self._epsilon = float(config.get("layer_norm_epsilon", 1e-5))
        self._tokens, self._places = weights["wte.weight"], weights["wpe.weight"]
        self._blocks = [block(f"h.{n}") for n in range(self.layers)]
        self._final = affine("ln_f")
        self._scores = Linear(weights.get("lm_head.weight", self._tokens).T)
        self.vocabulary, self.width = self._tokens.shape
        self.device = self._tokens.device
        rounded = "" if self._kept == self.dtype else f", weights rounded to {_name(self._kept)}"
        self.computes_in = f"{_name(self.dtype)} on {self.device}{rounded}"

    def pack(self, rows: int) -> None:
        """Lay the weights out for passes of at most `rows` tokens, which is what a step of decoding has."""
        for block in self._blocks:
            for part in (block.attention, block.projection, block.up, block.down):
                part.pack(rows, self._kept)
        self._scores.pack(rows, self._kept)

    def describe(self) -> str:
        """Its size and the numbers it computes in, in one line."""
        shortfall = f", {self.shortfall}" if self.shortfall else ""
        return f"{self.layers} layers of width {self.width}, {self.computes_in}{shortfall}"

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def logits(self, ids: Tensor, positions: Tensor, attend: Attend, wanted: Any) -> Tensor:
        """Scores of the token after each wanted place, [places, vocabulary].

        Args:
            ids, positions: [..., tokens].
            wanted: an index into [..., tokens]: nothing but these places is scored.
        """
        x = self._tokens[ids] + self._places[positions]
        for layer, block in enumerate(self._blocks):
            heads = block.attention(self._norm(x, block.ln_1)).unflatten(-1, (3, self.heads, -1))
            x = x + block.projection(attend(layer, *heads.unbind(-3)).flatten(-2))
            x = x + block.down(gelu(block.up(self._norm(x, block.ln_2)), approximate="tanh"))
        return self._scores(self._norm(x[wanted], self._final)).float()

    def _norm(self, x: Tensor, by: Affine) -> Tensor:
        return layer_norm(x, (self.width,), *by, self._epsilon)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, mapped from the files rather than read: two models of one folder share the memory."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    for path in () if tensors else sorted(folder.glob("pytorch_model*.bin")):
        tensors |= torch.load(path, weights_only=True, mmap=True)
    if not tensors:
        raise FileNotFoundError(f"model_path: {folder} has no weights (*.safetensors, pytorch_model*.bin)")
    return tensors


def _refuse_others(config: Mapping[str, Any]) -> None:
    """Refuse settings that would change the computation and are not implemented above."""
    plain = {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }
    for key, value in plain.items():
        if (configured := config.get(key, value)) != value:
            raise ValueError(f"model_path: {key} is {configured}, and this lab computes models with {value}")
