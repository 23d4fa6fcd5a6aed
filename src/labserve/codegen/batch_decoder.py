"""A batch of texts that is begun together: next-token scores, step by step, until the last of them is done.

Prompts of different lengths stand side by side with padding on the left. Two ways to compute: an OpenVINO engine with
the keys and values inside it, and PyTorch. Each imports its own: an engine's model starts without PyTorch.
"""

import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Scores = np.ndarray[Any, Any]
ENGINE = "openvino_model.xml"


class BatchDecoder(Protocol):
    """The methods of a decoder that a model.py needs."""

    def begin(self, prompts: list[list[int]]) -> Scores:
        """Forget the last batch and read these prompts; scores of each one's next token, [batch, vocabulary]."""

    def step(self, keep: list[int], tokens: list[int]) -> Scores:
        """Go on with the rows `keep` of the batch, each with its new token; scores as above, for these rows."""


def load_batch_decoder(folder: str, device: str, threads: int, exact: bool) -> BatchDecoder:
    """The decoder of an engine's folder, or of a Hugging Face model's. `exact`: fp32 throughout."""
    if (Path(folder) / ENGINE).is_file():
        return OpenVinoDecoder(folder, threads, exact)
    return TorchDecoder(folder, device, threads, exact)


class Padding:
    """Which places of each row hold a token: the mask and the positions that a model wants beside its ids."""

    def __init__(self, prompts: list[list[int]]) -> None:
        width = max(map(len, prompts))
        self.ids = np.zeros((len(prompts), width), dtype=np.int64)
        self.mask = np.zeros_like(self.ids)
        for row, prompt in enumerate(prompts):
            self.ids[row, width - len(prompt) :] = prompt
            self.mask[row, width - len(prompt) :] = 1
        self.positions = np.maximum(self.mask.cumsum(axis=1) - 1, 0)

    def step(self, keep: list[int], tokens: list[int]) -> None:
        """The rows that stay, each one token longer; ids and positions are those of the new tokens alone."""
        self.mask = np.pad(self.mask[keep], ((0, 0), (0, 1)), constant_values=1)
        self.ids = np.array(tokens, dtype=np.int64)[:, None]
        self.positions = self.mask.sum(axis=1, keepdims=True) - 1


class OpenVinoDecoder:
    """A stateful OpenVINO model: it keeps keys and values itself; `beam_idx` says which rows go on."""

    def __init__(self, folder: str, threads: int, exact: bool) -> None:
        import openvino as ov

        model = ov.Core().read_model(Path(folder) / ENGINE)
        _last_place_only(model)
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if exact:
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        self._request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
        self._inputs = {name for port in model.inputs for name in port.get_names()}
        self._padding = Padding([[0]])

    def another(self) -> "OpenVinoDecoder":
        """The same model with keys and values of its own, for another batch."""
        decoder = copy.copy(self)
        decoder._request = self._request.get_compiled_model().create_infer_request()
        return decoder

    def begin(self, prompts: list[list[int]]) -> Scores:
        self._padding = Padding(prompts)
        self._request.reset_state()
        return self._scores(list(range(len(prompts))))

    def step(self, keep: list[int], tokens: list[int]) -> Scores:
        self._padding.step(keep, tokens)
        return self._scores(keep)

    def _scores(self, rows: list[int]) -> Scores:
        inputs = {
            "input_ids": self._padding.ids,
            "attention_mask": self._padding.mask,
            "position_ids": self._padding.positions,
            "beam_idx": np.array(rows, dtype=np.int32),
        }
        self._request.infer({name: value for name, value in inputs.items() if name in self._inputs})
        # Valid until the next step: the tensor is the engine's own.
        scores: Scores = self._request.get_tensor("logits").data[:, -1]
        return scores


class TorchDecoder:
    """Hugging Face's model as it is, on a CPU or a GPU."""

    def __init__(self, folder: str, device: str, threads: int, exact: bool) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        dtype = torch.float32 if exact or device == "cpu" else torch.float16
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
        self._model = model.to(device).eval()
        self._padding = Padding([[0]])
        self._cache: Any = None

    def begin(self, prompts: list[list[int]]) -> Scores:
        from transformers import DynamicCache

        self._padding, self._cache = Padding(prompts), DynamicCache(config=self._model.config)
        return self._scores()

    def step(self, keep: list[int], tokens: list[int]) -> Scores:
        if len(keep) < len(self._padding.mask):
            import torch

            self._cache.batch_select_indices(torch.tensor(keep, device=self._model.device))
        self._padding.step(keep, tokens)
        return self._scores()

    def _scores(self) -> Scores:
        import torch

        ids, mask, positions = (
            torch.from_numpy(array).to(self._model.device)
            for array in (self._padding.ids, self._padding.mask, self._padding.positions)
        )
        with torch.inference_mode():
            out = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: Scores = out.logits[:, -1].float().cpu().numpy()
        return logits


def _last_place_only(model: Any) -> None:
    """Let the model score only the last place of each row: of a prompt, nothing else is wanted."""
    import openvino as ov

    node = model.output("logits").get_node()
    while node.get_type_name() != "MatMul":  # below it there may be a bias or a conversion
        node = node.input_value(0).get_node()
    constants = (np.array([value], dtype=np.int64) for value in (-1, 2**31, 1, 1))
    start, stop, stride, axis = (ov.opset13.constant(value) for value in constants)
    last_place = ov.opset13.slice(node.input_value(0), start, stop, stride, axis)
    node.input(0).replace_source_output(last_place.output(0))
    model.validate_nodes_and_infer_types()
