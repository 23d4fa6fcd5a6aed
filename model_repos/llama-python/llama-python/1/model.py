"""Llama through Hugging Face's `generate`, as simply as it can be served: one prompt after the other.

What a compiled engine is compared with. Each request has its own text and its own `max_tokens`.
"""

import time

import triton_python_backend_utils as pb_utils

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
        return self.guard.each(requests, self.answer)

    def answer(self, request):
        texts = []
        for prompt in read_prompts(reader(request), request.is_cancelled, self.generator):
            name = self.names.take(request.request_id())
            self.clock.wait(lambda name=name: {"ids": [name]})
            started = time.monotonic()
            (text,) = self.generator.generate([prompt])
            self.log.write(started, [name], **told([prompt], [text], [name], self.log.texts))
            self.clock.done()
            self.names.free(name)
            if isinstance(text, Exception):
                raise text
            texts.append(text)
        return [pb_utils.Tensor("text_output", text_array(texts, (len(texts),)))]

    def finalize(self):
        self.log.close()
