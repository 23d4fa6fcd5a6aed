"""Lab 01's python models from token ids to logits: what the ONNX and the TorchScript generator have in common."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from labserve.batches import compute_together, pad, split_padded
from labserve.guard import Guard
from labserve.observe.executions import Executions
from labserve.params import BadInput
from labserve.triton import request_names


class LogitsModel:
    """A subclass names its tensors, loads its file, and has a `forward` from ids [n, m] to logits [n, m, vocab].

    Triton's python backend only gathers requests. Here they become one forward pass: padded to the longest text,
    computed at once, cut to their lengths.
    """

    input: str
    output: str

    def initialize(self, args: dict[str, str]) -> None:
        self.guard = Guard(args)
        dims = json.loads(args["model_config"])["output"][0]["dims"]
        self.vocabulary = int(dims[-1])
        self.executions = Executions(args)
        self.load(args)

    def load(self, args: dict[str, str]) -> None:
        raise NotImplementedError

    def forward(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        raise NotImplementedError

    def execute(self, requests: list[Any]) -> list[Any]:
        with self.executions.execution(request_names(requests)) as line:
            responses, good = self.guard.read(requests, self.ids_of)
            blocks = [block for _, block in good]
            for (place, _), part in zip(good, compute_together(blocks, self.logits), strict=True):
                if isinstance(part, Exception):
                    responses[place] = self.guard.failed(part)
                else:
                    tensor = pb_utils.Tensor(self.output, np.ascontiguousarray(part))
                    responses[place] = pb_utils.InferenceResponse([tensor])
            line["ids"] = request_names([requests[place] for place, _ in good])
            line["rows"] = [place for place, _ in good]
            line["tokens"] = [block.size for block in blocks]
        return responses

    def logits(self, blocks: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        return split_padded(self.forward(pad(blocks)), [block.shape for block in blocks])

    def ids_of(self, request: Any) -> NDArray[np.int64]:
        ids: NDArray[np.int64] = pb_utils.get_input_tensor_by_name(request, self.input).as_numpy()
        if not ids.size:
            raise BadInput(self.input, "there is no token in it")
        if ids.min() < 0 or 0 < self.vocabulary <= ids.max():
            words = f"ids from {ids.min()} to {ids.max()}; the model knows 0 to {self.vocabulary - 1}"
            raise BadInput(self.input, words)
        return ids

    def finalize(self) -> None:
        self.executions.close()
