"""Llama through Hugging Face's `generate` in batches: the gain of batching alone, without a compiled engine.

The requests that Triton hands over together are padded to one batch, which runs until its longest member is done.
"""

import triton_python_backend_utils as pb_utils

from labserve.batches import compute_together
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
        responses, good = self.guard.read(requests, self.prompts_of)
        asked = [prompt for _, prompts in good for prompt in prompts]
        ids = [requests[place].request_id() for place, prompts in good for _ in prompts]
        with self.executions.named(ids) as names, self.executions.execution(names) as line:
            found = compute_together(asked, self.generator.generate)
            line.update(describe_batch(asked, found, names, self.executions.log.texts))
        texts = iter(found)
        for place, prompts in good:
            responses[place] = self.response([next(texts) for _ in prompts])
        return responses

    def prompts_of(self, request):
        return read_prompts(input_reader(request), request.is_cancelled, self.generator)

    def response(self, texts):
        error = next((text for text in texts if isinstance(text, Exception)), None)
        if error:
            return self.guard.failed(error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text_array(texts, (len(texts), 1)))])

    def finalize(self):
        self.executions.close()
