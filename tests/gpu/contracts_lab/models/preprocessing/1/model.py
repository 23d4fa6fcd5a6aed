"""A token is a character's number."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy().reshape(-1)[0].decode()
        length = pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy()
        ids = np.array([[ord(letter) for letter in text]], dtype=np.int32)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("INPUT_ID", ids),
                pb_utils.Tensor("REQUEST_INPUT_LEN", np.array([[ids.size]], dtype=np.int32)),
                pb_utils.Tensor("REQUEST_OUTPUT_LEN", length),
            ]
        )
