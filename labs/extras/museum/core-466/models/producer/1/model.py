"""Answers a request X = n with n responses at once."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0, 0])
            sender = request.get_response_sender()
            for _ in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), 0.3, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
