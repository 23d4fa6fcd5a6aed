"""CodeGen by TensorRT-LLM: every row of a batch becomes a request to `tensorrt_llm`, and its answer a row again.

Triton's dynamic batcher decides here who shares a batch, as in the original, and a batch is run to its end. The engine
behind sees single requests, and batches them in flight.
"""

import asyncio
import time

import triton_python_backend_utils as pb_utils

from labserve.codegen import request as codegen_request
from labserve.guard import Guard
from labserve.model_shape import ModelShape
from labserve.observe.watched_log import WatchedLog
from labserve.params import Refusal
from labserve.triton import input_reader, instance, parameter

ENGINE = "tensorrt_llm"


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.shape = ModelShape.of(parameter(args, "model_dir"))
        self.begun = 0  # rows so far: the step log's names for them
        self.log = WatchedLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    async def execute(self, requests):
        started, first = time.monotonic(), self.begun
        responses = await asyncio.gather(*(self.answer(request) for request in requests))
        self.log.write(started, list(range(first, self.begun)))
        return responses

    async def answer(self, request):
        try:
            self.guard.check(request)
            rows = codegen_request.parse_codegen_request(input_reader(request), self.shape)
            self.begun += len(rows)
            await asyncio.gather(*(self.generate(row) for row in rows))
        except Exception as error:  # this request fails, the others of its batch do not
            return self.guard.failed(error)
        tensors = codegen_request.outputs(rows)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])

    async def generate(self, row):
        inputs = [
            pb_utils.Tensor(name, array)
            for name, array in codegen_request.engine_inputs(row, self.shape.vocabulary).items()
        ]
        names = codegen_request.engine_outputs(row)
        asked = pb_utils.InferenceRequest(model_name=ENGINE, requested_output_names=names, inputs=inputs)
        answer = await asked.async_exec()
        if answer.has_error():
            raise Refusal(f"{ENGINE}: {answer.error().message()}")
        tensors = {name: pb_utils.get_output_tensor_by_name(answer, name).as_numpy() for name in names}
        codegen_request.finish_row(row, tensors)

    def finalize(self):
        self.log.close()
