"""CodeGen that answers inside `execute`: one Triton batch is one engine batch, run to its end.

Triton's dynamic batcher decides who shares a batch, by what waits when the instance is free and by
`max_queue_delay_microseconds`. Whatever it hands over is decoded together here: a step costs little more for eight
texts than for one, and that is what batching buys.
"""

import json
import time

import triton_python_backend_utils as pb_utils

from labserve.batches import together
from labserve.clock import Clock
from labserve.codegen import batch_decoder
from labserve.codegen import request as codegen_request
from labserve.gauges import Gauges
from labserve.guard import Guard
from labserve.model_shape import Shape
from labserve.seats import Seats
from labserve.steplog import Names, StepLog
from labserve.text.told import Growing, Told, tokenizer_in
from labserve.triton import device, instance, parameter, reader

LOOK_AROUND = 16  # steps between two questions whether the clients are still there


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.shape = Shape.of(parameter(args, "model_dir"))
        exact = parameter(args, "exact") == "true"
        self.decoder = batch_decoder.load(
            parameter(args, "model_dir"), device(args), int(parameter(args, "threads")), exact
        )
        # Keys and values of so many tokens may be in memory at once; they take 2 bytes a number, or 4.
        memory = int(parameter(args, "kv_cache_memory_mib")) * 2**20
        self.most_tokens = max(self.shape.context, memory // (self.shape.token_values * (4 if exact else 2)))
        self.names = Names()  # of rows, for the step log
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.texts = Told(self.log, lambda: tokenizer_in(parameter(args, "model_dir")))
        self.clock = Clock(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.slots = slots = json.loads(args["model_config"])["max_batch_size"]
        self.gauges = Gauges(args["model_name"], slots=slots, running=0, steps_total=0, tokens_total=0)

    def execute(self, requests):
        responses, good = self.guard.read(requests, lambda request: codegen_request.parse(reader(request), self.shape))
        asked = [(requests[place], rows) for place, rows in good]
        for (place, _), answer in zip(good, together(asked, self.answers), strict=True):
            responses[place] = self.guard.failed(answer) if isinstance(answer, Exception) else response(answer)
        return responses

    def answers(self, asked):
        """The tensors of each request's answer, or why it has none."""
        for part in self.fitting([(row.restart(), request) for request, rows in asked for row in rows]):
            self.generate(part)
        failed = [next((row.error for row in rows if row.error), None) for _, rows in asked]
        return [error or codegen_request.outputs(rows) for error, (_, rows) in zip(failed, asked, strict=True)]

    def generate(self, batch):
        """Every row to its end. Nobody joins; a row that is done leaves and is not computed any more."""
        names = [self.names.take(request.request_id()) for _, request in batch]
        seats = Seats(max(self.slots, len(batch)))
        for name, (_, request) in zip(names, batch, strict=True):
            seats.take(name)
            self.gauges.arrived(name, request)
        running = [(name, *each) for name, each in zip(names, batch, strict=True)]
        keep, step = [], 0
        while running:
            rows = [row for _, row, _ in running]
            line = {
                "rows": [seats.of(name) for name, _, _ in running],
                "phase": ("d" if step else "p") * len(rows),
                "tokens": [1 if step else len(row.ids) for row in rows],
            }
            self.clock.wait(lambda: {"ids": [name for name, _, _ in running], **line, "seats": seats.names})  # noqa: B023
            started = time.monotonic()
            logits = (
                self.decoder.step(keep, [row.ids[-1] for row in rows])
                if step
                else self.decoder.begin([row.ids for row in rows])
            )
            keep = codegen_request.advance(rows, logits)
            step += 1
            if step % LOOK_AROUND == 0:
                keep = [place for place in keep if not running[place][2].is_cancelled()]
            left = [running[place] for place in keep]
            self.record(started, running, left, seats, line)
            running = left

    def record(self, started, running, left, seats, line):
        """The step's line in the log (docs/step-log.md)."""
        going_on = {name for name, _, _ in left}
        ended = {name: row.why for name, row, _ in running if name not in going_on}
        for name in ended:
            seats.free(name)
        made = [0 if row.error else 1 for _, row, _ in running]
        grown = [Growing(name, row.ids, row.prompt, n) for (name, row, _), n in zip(running, made, strict=True)]
        names, first = [name for name, _, _ in running], line["phase"].startswith("p")
        self.log.write(
            started, names, **line, made=made, **self.texts.fields(grown), prefill=len(names) if first else 0,
            joined=names if first else [], ended=ended, slots=len(seats.names), slots_used=seats.used,
            seats=seats.names,
        )  # fmt: skip
        self.gauges.step(names, line["phase"], line["tokens"], made)
        for name in ended:
            self.names.free(name)
            self.texts.forget(name)
            self.gauges.gone(name)
        self.gauges.update(running=len(left))
        self.clock.done(left=len(left))

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
        self.gauges.close()
        self.log.close()


def response(tensors):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])
