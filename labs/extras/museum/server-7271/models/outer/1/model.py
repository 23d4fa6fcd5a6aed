"""Asks the model `inner` for its answer (BLS)."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = [pb_utils.get_input_tensor_by_name(request, "X")]
            call = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=tensors)
            responses.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return responses
