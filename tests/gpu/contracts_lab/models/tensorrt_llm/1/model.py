"""Answers with the letter b; refuses what the backend of the release refuses."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.plain_ids = parameters["plain_ids"]["string_value"] == "true"

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name = request.request_id()
        if self.plain_ids and name and not name.isdecimal():
            said = pb_utils.TritonError(f"Invalid requestId, must be uint64_t. Got {name}")
            return pb_utils.InferenceResponse(error=said)
        ids, length, wanted = (
            pb_utils.get_input_tensor_by_name(request, key).as_numpy().reshape(-1)
            for key in ("input_ids", "input_lengths", "request_output_len")
        )
        if not ids.size or not wanted.size or length[0] != ids.size or wanted[0] < 1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("an input is empty or does not fit"))
        answer = np.concatenate([ids, np.full(int(wanted[0]), ord("b"), dtype=np.int32)])
        return pb_utils.InferenceResponse([pb_utils.Tensor("output_ids", answer.reshape(1, 1, -1))])
