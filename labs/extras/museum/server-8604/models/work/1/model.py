"""Answers; a negative X kills this process, as a fault in a native library would."""

import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            if pb_utils.get_input_tensor_by_name(request, "X").as_numpy().min() < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        answer = pb_utils.Tensor("Y", np.ones((1, 1), np.float32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
