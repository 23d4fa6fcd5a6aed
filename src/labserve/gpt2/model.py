"""GPT-2 itself (OpenAI, 2019), computed from a Hugging Face folder. Who attends to what is the caller's affair.

Written out, because a learner can read it in a minute, and because transformers would take seconds of every start.
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

#: (layer, query, key, value) to the output of attention; all of them are [..., tokens, heads, head_dim].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Affine = tuple[Tensor, Tensor]  # weight and bias


@dataclass(frozen=True, slots=True)
class Block:
    """The tensors of one layer."""

    ln_1: Affine
    attention: Affine  # queries, keys and values in one matrix
    projection: Affine
    ln_2: Affine
    up: Affine
    down: Affine


class GPT2:
    """The model of one folder, in fp32 (fp16 on a GPU).

    Raises:
        ValueError: the folder holds another kind of model, or a variant of this one.
        OSError, KeyError: something of it is missing.
    """

    def __init__(self, folder: str, device: str = "cpu", threads: int = 1) -> None:
        torch.set_num_threads(threads)
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        _refuse_others(config)
        dtype = torch.float32 if device == "cpu" else torch.float16
        weights = {name.removeprefix("transformer."): t.to(device, dtype) for name, t in _tensors(Path(folder)).items()}

        def affine(name: str) -> Affine:
            return weights[f"{name}.weight"], weights[f"{name}.bias"]

        self.layers, self.heads = int(config["n_layer"]), int(config["n_head"])
        self.context, self.end_id = int(config["n_positions"]), config.get("eos_token_id")
        self._epsilon = float(config.get("layer_norm_epsilon", 1e-5))
        self._tokens, self._places = weights["wte.weight"], weights["wpe.weight"]
        self._blocks = [
            Block(*(affine(f"h.{n}.{part}") for part in
                    ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")))
            for n in range(self.layers)
        ]  # fmt: skip
        self._final = affine("ln_f")
        self._scores = weights.get("lm_head.weight", self._tokens)
        self.vocabulary, self.width = self._tokens.shape
        self.device, self.dtype = self._tokens.device, dtype

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def logits(self, ids: Tensor, positions: Tensor, attend: Attend, wanted: Any) -> Tensor:
        """Scores of the token after each wanted place, [places, vocabulary].

        Args:
            ids, positions: [..., tokens].
            wanted: an index into [..., tokens]: nothing but these places is scored.
        """
        x = self._tokens[ids] + self._places[positions]
        for layer, block in enumerate(self._blocks):
            heads = self._affine(self._norm(x, block.ln_1), block.attention).unflatten(-1, (3, self.heads, -1))
            x = x + self._affine(attend(layer, *heads.unbind(-3)).flatten(-2), block.projection)
            inner = gelu(self._affine(self._norm(x, block.ln_2), block.up), approximate="tanh")
            x = x + self._affine(inner, block.down)
        return self._norm(x[wanted], self._final) @ self._scores.T

    def _norm(self, x: Tensor, by: Affine) -> Tensor:
        return layer_norm(x, (self.width,), *by, self._epsilon)

    @staticmethod
    def _affine(x: Tensor, by: Affine) -> Tensor:
        weight, bias = by
        return torch.addmm(bias, x.flatten(0, -2), weight).view(*x.shape[:-1], -1)


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
    """What changes the computation and is not written out above."""
    plain = {
        "model_type": "gpt2", "activation_function": "gelu_new", "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }  # fmt: skip
    for key, value in plain.items():
        if (got := config.get(key, value)) != value:
            raise ValueError(f"model_path: {key} is {got}, and this lab computes models with {value}")
