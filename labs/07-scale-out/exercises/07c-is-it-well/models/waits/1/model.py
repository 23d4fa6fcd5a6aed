"""Answers after a while. Texts of the check are orders: to take longer, to fail the next requests, to die.

They are answered at once, and `07c-asked` with the number of other requests since the last such order.
"""

import os
import signal
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.triton import parameter


class TritonPythonModel:
    def initialize(self, args):
        self.seconds = float(parameter(args, "step_ms")) / 1e3
        self.failures = self.asked = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        order, _, value = text.item().decode().partition("=")
        if order == "07c-die":
            os.kill(os.getpid(), signal.SIGKILL)  # as a fault in a native library would
        elif order == "07c-asked":
            text, self.asked = np.full_like(text, f"{self.asked}".encode()), 0
        elif order == "07c-seconds":
            self.seconds = float(value)
        elif order == "07c-failures":
            self.failures = int(value)
        else:
            self.asked += 1
            if self.failures:
                self.failures -= 1
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("out of memory"))
            time.sleep(self.seconds)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])
