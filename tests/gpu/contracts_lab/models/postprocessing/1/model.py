"""Characters' numbers as text."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        ids = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy().reshape(-1)
        text = "".join(map(chr, ids)).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[text]], dtype=object))])
