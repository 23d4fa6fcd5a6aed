"""CodeGen that answers inside `execute`: one Triton batch is one engine batch, run to its end.

Triton's dynamic batcher decides who shares a batch, by what waits when the instance is free and by
`max_queue_delay_microseconds`. Whatever it hands over is decoded together here: a step costs little more for eight
texts than for one, and that is what batching buys.
"""

import json
import time

import triton_python_backend_utils as pb_utils

from labserve.codegen import batch_decoder
from labserve.codegen import request as codegen_request
from labserve.model_shape import Shape
from labserve.params import BadInput
from labserve.steplog import StepLog
from labserve.triton import Gauges, device, instance, parameter, reader

LOOK_AROUND = 16  # steps between two questions whether the clients are still there


class TritonPythonModel:
    def initialize(self, args):
        self.shape = Shape.of(parameter(args, "model_dir"))
        exact = parameter(args, "exact") == "true"
        self.decoder = batch_decoder.load(
            parameter(args, "model_dir"), device(args), int(parameter(args, "threads")), exact
        )
        # Keys and values of so many tokens may be in memory at once; they take 2 bytes a number, or 4.
        memory = int(parameter(args, "kv_cache_memory_mib")) * 2**20
        self.most_tokens = max(self.shape.context, memory // (self.shape.token_values * (4 if exact else 2)))
        self.begun = 0  # rows so far: the step log's names for them
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.gauges = Gauges(args["model_name"], json.loads(args["model_config"])["max_batch_size"])

    def execute(self, requests):
        answers = {}  # request's place -> its rows, or why it has none
        for place, request in enumerate(requests):
            try:
                answers[place] = codegen_request.parse(reader(request), self.shape)
            except BadInput as error:
                answers[place] = error
        good = {place: rows for place, rows in answers.items() if isinstance(rows, list)}
        rows = [(row, requests[place]) for place, rows in good.items() for row in rows]
        try:
            for part in self.fitting(rows):
                self.generate(part)
        except Exception as error:  # this batch fails, the server goes on
            answers.update(dict.fromkeys(good, error))
        return [response(answers[place]) for place in range(len(requests))]

    def generate(self, batch):
        """Every row to its end. Nobody joins; a row that is done leaves and is not computed any more."""
        numbers = range(self.begun, self.begun + len(batch))
        self.begun += len(batch)
        running = list(zip(numbers, batch, strict=True))
        keep, step = [], 0
        while running:
            started = time.monotonic()
            rows = [row for _, (row, _) in running]
            logits = (
                self.decoder.step(keep, [row.ids[-1] for row in rows])
                if step
                else self.decoder.begin([row.ids for row in rows])
            )
            keep = codegen_request.advance(rows, logits)
            step += 1
            if step % LOOK_AROUND == 0:
                keep = [place for place in keep if not running[place][1][1].is_cancelled()]
            self.log.write(started, [number for number, _ in running], prefill=len(rows) if step == 1 else 0)
            self.gauges.step(tokens=len(rows), slots_used=len(keep))
            running = [running[place] for place in keep]

    def fitting(self, batch):
        """The batch in parts whose keys and values fit the memory: one part, unless texts are very long."""
        part, width = [], 0
        for row, request in batch:
            width = max(width, row.prompt + row.limit)
            if part and width * (len(part) + 1) > self.most_tokens:
                yield part
                part, width = [], row.prompt + row.limit
            part.append((row, request))
        if part:
            yield part

    def finalize(self):
        self.log.close()


def response(answer):
    if isinstance(answer, Exception):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answer)))
    tensors = codegen_request.outputs(answer)
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])
