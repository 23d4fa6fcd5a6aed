"""Llama through Hugging Face's `generate` in batches: what batching alone buys, without a compiled engine.

The requests that Triton hands over together are padded to one batch, which runs until its longest member is done.
"""

import time

import triton_python_backend_utils as pb_utils

from labserve.params import BadInput
from labserve.steplog import StepLog
from labserve.text.hf_generate import Generator, read_prompts, text_tensor
from labserve.triton import device, instance, parameter


class TritonPythonModel:
    def initialize(self, args):
        self.generator = Generator(parameter(args, "model_path"), device(args), int(parameter(args, "threads")))
        self.log = StepLog(parameter(args, "run_dir", ""), args["model_name"], instance(args))

    def execute(self, requests):
        started = time.monotonic()
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
        self.log.write(started, [request.request_id() for request in requests])
        return responses

    def finalize(self):
        self.log.close()
