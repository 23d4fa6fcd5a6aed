"""CodeGen for a model whose lesson is the batch: its rows begin together, get a token a step, and leave when done."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from labsched.slots import Slots
from labserve.batches import compute_together
from labserve.codegen import batch_decoder
from labserve.codegen.request import TextRow, advance, outputs, parse_codegen_request
from labserve.guard import Guard
from labserve.model_shape import ModelShape
from labserve.observe.steps import Steps
from labserve.observe.texts import GrownText, find_tokenizer
from labserve.triton import device, input_reader, parameter

LOOK_AROUND = 16  # steps between two questions whether the clients are still there


class Rows:
    """The rows of a model instance's requests. What it computes and ends, it also logs and counts (`steps`).

    `most_tokens`: of how many tokens the keys and values fit the memory at a time.
    """

    def __init__(self, args: dict[str, str]) -> None:
        folder, exact = parameter(args, "model_dir"), parameter(args, "exact") == "true"
        self.guard = Guard(args)
        self._shape = ModelShape.of(folder)
        threads = int(parameter(args, "threads"))
        self.decoder = batch_decoder.load_batch_decoder(folder, device(args), threads, exact)
        memory = int(parameter(args, "kv_cache_memory_mib")) * 2**20
        token_bytes = self._shape.token_values * (4 if exact else 2)
        self.most_tokens = max(self._shape.context, memory // token_bytes)
        self.slots = json.loads(args["model_config"])["max_batch_size"]
        self.steps = Steps(args, self.slots, lambda: find_tokenizer(folder))
        self._before: dict[TextRow, int] = {}  # the rows of the last step, with their places in it

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
        self._before = {}
        self.steps.slots = Slots(max(self.slots, len(batch)))
        for row in batch:
            row.name = self.steps.arrive(row.request)
            self.steps.join(row.name)
        return batch

    def step(self, rows: list[TextRow]) -> list[TextRow]:
        """One more token for each row of the batch that is still running; returns the rows that need another one."""
        first = not self._before
        names = [row.name for row in rows]
        phase = ("p" if first else "d") * len(rows)
        tokens = [len(row.ids) if first else 1 for row in rows]
        with self.steps.step(names, phase, tokens) as observed:
            if first:
                logits = self.decoder.begin([row.ids for row in rows])
            else:
                keep = [self._before[row] for row in rows]
                logits = self.decoder.step(keep, [row.ids[-1] for row in rows])
            left = [rows[place] for place in advance(rows, logits)]
            if left and (len(left[0].ids) - left[0].prompt) % LOOK_AROUND == 0:
                left = [row for row in left if not row.request.is_cancelled()]
            going_on = set(left)
            for row in rows:
                if row not in going_on:
                    self.steps.end(row.name, row.why)
            observed.grown = [GrownText(row.name, row.ids, row.prompt, 0 if row.error else 1) for row in rows]
        self._before = {row: place for place, row in enumerate(rows)}
        return left

    def close(self) -> None:
        """The model is being unloaded."""
        self.steps.close()
