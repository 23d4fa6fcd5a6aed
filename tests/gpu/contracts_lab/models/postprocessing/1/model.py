"""Characters' numbers as text, without EOS (skip_special_tokens)."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

EOS = 2


class TritonPythonModel:
    def initialize(self, args):
        self.dims = len(json.loads(args["model_config"])["output"][0]["dims"])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        ids = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy().reshape(-1)
        text = "".join(chr(token) for token in ids if token != EOS).encode()
        found = np.array([text], dtype=object).reshape([1] * (1 + self.dims))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", found)])
