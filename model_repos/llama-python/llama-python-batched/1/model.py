"""Llama through Hugging Face's `generate` in batches: what batching alone buys, without a compiled engine.

The requests that Triton hands over together are padded to one batch, which runs until its longest member is done.
"""

import time

import triton_python_backend_utils as pb_utils

from labserve.batches import together
from labserve.clock import Clock
from labserve.guard import Guard
from labserve.steplog import Names, StepLog
from labserve.text.hf_generate import Generator, read_prompts, text_array, told
from labserve.triton import device, instance, parameter, reader


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        threads, most_seconds = int(parameter(args, "threads")), float(parameter(args, "most_seconds"))
        self.generator = Generator(parameter(args, "model_path"), device(args), threads, most_seconds)
        self.log = StepLog(parameter(args, "run_dir", ""), args["model_name"], instance(args))
        self.clock = Clock(parameter(args, "run_dir", ""), args["model_name"], instance(args))
        self.names = Names()

    def execute(self, requests):
        responses, good = self.guard.read(requests, self.prompts_of)
        names = [self.names.take(requests[place].request_id()) for place, prompts in good for _ in prompts]
        self.clock.wait(lambda: {"ids": names})
        started = time.monotonic()
        asked = [prompt for _, prompts in good for prompt in prompts]
        found = together(asked, self.generator.generate)
        texts = iter(found)
        for place, prompts in good:
            own = [next(texts) for _ in prompts]
            error = next((text for text in own if isinstance(text, Exception)), None)
            responses[place] = self.guard.failed(error) if error else response(own)
        self.log.write(started, names, **told(asked, found, names, self.log.texts))
        self.clock.done()
        for name in names:
            self.names.free(name)
        return responses

    def prompts_of(self, request):
        return read_prompts(reader(request), request.is_cancelled, self.generator)

    def finalize(self):
        self.log.close()


def response(texts):
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text_array(texts, (len(texts), 1)))])
