"""Llama through Hugging Face's `generate`, as simply as it can be served: one prompt after the other.

What a compiled engine is compared with. Each request has its own text and its own `max_tokens`.
"""

import time

import triton_python_backend_utils as pb_utils

from labserve.params import BadInput
from labserve.steplog import StepLog
from labserve.text.hf_generate import Generator, Prompt, read_prompts, text_tensor
from labserve.triton import device, instance, parameter


class TritonPythonModel:
    def initialize(self, args):
        self.generator = Generator(parameter(args, "model_path"), device(args), int(parameter(args, "threads")))
        self.log = StepLog(parameter(args, "run_dir", ""), args["model_name"], instance(args))

    def execute(self, requests):
        responses = []
        for request in requests:
            started = time.monotonic()
            try:
                texts = [self.answer(prompt) for prompt in read_prompts(request, self.generator)]
                responses.append(pb_utils.InferenceResponse([text_tensor(texts, (len(texts),))]))
            except BadInput as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            self.log.write(started, [request.request_id()])
        return responses

    def finalize(self):
        self.log.close()

    def answer(self, prompt: Prompt) -> str:
        return self.generator.generate([prompt])[0]
