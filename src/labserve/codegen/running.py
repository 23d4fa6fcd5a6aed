"""CodeGen for a model whose lesson is the batch: its rows begin together, get a token a step, and leave when done."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from labsched.slots import Slots
from labserve.batches import compute_together
from labserve.codegen import batch_decoder
from labserve.codegen.request import TextRow, advance, outputs, parse_codegen_request
from labserve.driver import Answers, Driver
from labserve.guard import Guard
from labserve.model_shape import ModelShape
from labserve.observe.recorder import Recorder
from labserve.slot_scheduler import SlotEngine, SlotScheduler
from labserve.text.prompts import find_tokenizer
from labserve.triton import device, input_reader, parameter


class Rows:
    """The rows of a model instance's requests. A driver (labserve/driver.py) computes, ends and records them.

    `most_tokens`: of how many tokens the keys and values fit the memory at a time.
    """

    def __init__(self, args: dict[str, str]) -> None:
        folder, exact = parameter(args, "model_dir"), parameter(args, "exact") == "true"
        self.guard = Guard(args)
        self._shape = ModelShape.of(folder)
        threads = int(parameter(args, "threads"))
        engine = RowEngine(batch_decoder.load_batch_decoder(folder, device(args), threads, exact))
        memory = int(parameter(args, "kv_cache_memory_mib")) * 2**20
        token_bytes = self._shape.token_values * (4 if exact else 2)
        self.most_tokens = max(self._shape.context, memory // token_bytes)
        self.engine, slots = engine, json.loads(args["model_config"])["max_batch_size"]
        self.scheduler = SlotScheduler(engine, slots, queues=False, asks=True)
        self.recorder = Recorder(args, self.scheduler, lambda: find_tokenizer(folder))
        self.driver = Driver(self.guard, self.scheduler, Answers(), self.recorder)  # `answer` returns the answers

    def answer(self, requests: Sequence[Any], generate: Callable[[list[TextRow]], None]) -> list[Any]:
        """A response for each request; `generate` runs rows to their ends.

        If it raises, each request is tried alone, so that only the culprit fails.
        """

        def answers(batch: Sequence[list[TextRow]]) -> list[Any]:
            generate([row.restart() for rows in batch for row in rows])
            errors = [next((row.error for row in rows if row.error), None) for rows in batch]
            return [error or outputs(rows) for error, rows in zip(errors, batch, strict=True)]

        responses, good = self.guard.read(requests, self._rows_of)
        computed = compute_together([rows for _, rows in good], answers)
        for (place, _), answer in zip(good, computed, strict=True):
            responses[place] = self._response(answer)
        return responses

    def _rows_of(self, request: Any) -> list[TextRow]:
        rows = parse_codegen_request(input_reader(request), self._shape)
        for row in rows:
            row.request = request
        return rows

    def _response(self, answer: Any) -> Any:
        """The response to one request. Where it cannot be made, the others are answered all the same."""
        try:
            if isinstance(answer, Exception):
                raise answer
            return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in answer.items()])
        except Exception as error:
            return self.guard.failed(error)

    def begin(self, batch: list[TextRow]) -> list[TextRow]:
        """These rows, and no others, are the batch from now on."""
        self.scheduler.slots = Slots(max(self.scheduler.max_running, len(batch)))
        for row in batch:
            row.id = row.request.request_id()
            self.driver.submit(row)
            self.scheduler.join(row)
        return batch

    def step(self, rows: list[TextRow]) -> list[TextRow]:
        """One more token for each row of the batch that is still running; returns the rows that need another one."""
        self.driver.run(self.scheduler.plan_of(rows))
        return [row for row in rows if not row.finished]

    def close(self) -> None:
        """The model is being unloaded."""
        self.driver.close()


class RowEngine(SlotEngine):
    """A decoder of batches behind a scheduler of slots."""

    def __init__(self, decoder: batch_decoder.BatchDecoder) -> None:
        self.decoder = decoder
        self._places: dict[TextRow, int] = {}  # of the rows in the last step

    def tokens(self, batch: Sequence[TextRow]) -> list[int]:
        return [1 if row.made else len(row.ids) for row in batch]

    def step(self, batch: Sequence[TextRow]) -> dict[str, Any]:
        rows = [*batch]
        if rows[0].made:
            logits = self.decoder.step([self._places[row] for row in rows], [row.ids[-1] for row in rows])
        else:
            logits = self.decoder.begin([row.ids for row in rows])
        self._places = {row: place for place, row in enumerate(rows)}
        advance(rows, logits)
        return {}
