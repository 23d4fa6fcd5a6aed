"""Llama through Hugging Face's `generate` in batches: what batching alone buys, without a compiled engine.

The requests that Triton hands over together are padded to one batch, which runs until its longest member is done.
"""

import triton_python_backend_utils as pb_utils

from labserve.hf_generate import Generator, read_prompts, text_tensor
from labserve.params import BadInput
from labserve.triton import device, parameter


class TritonPythonModel:
    def initialize(self, args):
        self.generator = Generator(parameter(args, "model_path"), device(args), int(parameter(args, "threads")))

    def execute(self, requests):
        asked, errors = [], {}
        for index, request in enumerate(requests):
            try:
                asked.append(read_prompts(request, self.generator))
            except BadInput as error:
                asked.append([])
                errors[index] = pb_utils.TritonError(str(error))
        texts = iter(self.generator.generate([prompt for prompts in asked for prompt in prompts]))
        responses = []
        for index, prompts in enumerate(asked):
            if index in errors:
                responses.append(pb_utils.InferenceResponse(error=errors[index]))
                continue
            own = [next(texts) for _ in prompts]
            responses.append(pb_utils.InferenceResponse([text_tensor(own, (len(own), 1))]))
        return responses
