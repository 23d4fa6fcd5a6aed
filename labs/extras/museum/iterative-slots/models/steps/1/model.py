"""Works on each request for X seconds or until it is cancelled, then sends its only response."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            until = time.monotonic() + float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0, 0])
            print("step begins", flush=True)
            while time.monotonic() < until and not request.is_cancelled():
                time.sleep(0.01)
            print("step ends", "cancelled" if request.is_cancelled() else "complete", flush=True)
            step = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))])
            request.get_response_sender().send(step, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
