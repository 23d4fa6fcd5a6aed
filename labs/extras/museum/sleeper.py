"""The model that most exhibits serve: it sleeps for as many seconds as its input X says.

Y is the number of requests in the batch. `labctl reproduce` copies it beside each config.pbtxt that has no model.py.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep(max(float(tensor.max()) for tensor in inputs))
        batch = np.full((1, 1), len(requests), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", batch)]) for _ in requests]
