"""A token is a character's number; where no end id is given it is the tokenizer's EOS.

As upstream's: tensorrtllm_backend, all_models/inflight_batcher_llm/preprocessing/1/model.py,
v0.17.0:250-256.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

EOS = 2


class TritonPythonModel:
    def initialize(self, args):
        self.outputs = {output["name"] for output in json.loads(args["model_config"])["output"]}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy().reshape(-1)[0].decode()
        ids = np.array([[ord(letter) for letter in text]], dtype=np.int32)
        end = pb_utils.get_input_tensor_by_name(request, "END_ID")
        tensors = {
            "INPUT_ID": ids,
            "REQUEST_INPUT_LEN": np.array([[ids.size]], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy(),
            "OUT_END_ID": np.array([[EOS]], dtype=np.int32) if end is None else end.as_numpy(),
        }
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, value) for name, value in tensors.items() if name in self.outputs]
        )
