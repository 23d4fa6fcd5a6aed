"""Prints the correlation id that it is given."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            print("id", pb_utils.get_input_tensor_by_name(request, "CORRID").as_numpy().reshape(-1)[0], flush=True)
        answer = pb_utils.Tensor("Y", np.ones((1, 1), np.float32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
