"""Llama through Hugging Face's `generate`, served in the simplest way: one prompt after the other.

What a compiled engine is compared with. Each request has its own text and its own `max_tokens`.
"""

import triton_python_backend_utils as pb_utils

from labserve.guard import Guard
from labserve.observe.executions import Executions
from labserve.text.hf_generate import Generator, describe_batch, read_prompts, text_array
from labserve.triton import device, input_reader, parameter


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        threads, most_seconds = int(parameter(args, "threads")), float(parameter(args, "most_seconds"))
        self.generator = Generator(parameter(args, "model_path"), device(args), threads, most_seconds)
        self.executions = Executions(args)

    def execute(self, requests):
        return self.guard.each(requests, self.answer)

    def answer(self, request):
        texts = [
            self.generate(prompt, request.request_id())
            for prompt in read_prompts(input_reader(request), request.is_cancelled, self.generator)
        ]
        return [pb_utils.Tensor("text_output", text_array(texts, (len(texts),)))]

    def generate(self, prompt, id):
        """The text of one prompt, alone."""
        with self.executions.named([id]) as names, self.executions.execution(names) as line:
            (text,) = self.generator.generate([prompt])
            line.update(describe_batch([prompt], [text], names, self.executions.log.texts))
        if isinstance(text, Exception):
            raise text
        return text

    def finalize(self):
        self.executions.close()
