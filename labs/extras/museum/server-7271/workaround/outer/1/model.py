"""Asks the model `inner` for all answers at once: the calls wait in its queue together."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        calls = []
        for request in requests:
            tensors = [pb_utils.get_input_tensor_by_name(request, "X")]
            call = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=tensors)
            calls.append(call.async_exec())
        answers = await asyncio.gather(*calls)
        return [pb_utils.InferenceResponse(answer.output_tensors()) for answer in answers]
