"""Looks for X seconds whether its request is cancelled, and prints whether it saw that."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        print("execution begins", flush=True)
        until = time.monotonic() + float(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0, 0])
        while time.monotonic() < until and not requests[0].is_cancelled():
            time.sleep(0.01)
        print("cancellation", "seen" if requests[0].is_cancelled() else "not seen", flush=True)
        answer = pb_utils.Tensor("Y", np.ones((1, 1), np.float32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
