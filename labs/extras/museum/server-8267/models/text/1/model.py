"""Answers with a text."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        text = pb_utils.Tensor("Y", np.array([[b"a text"]], np.object_))
        return [pb_utils.InferenceResponse([text]) for _ in requests]
