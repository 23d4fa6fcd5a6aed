"""What a ``check.py`` is given: a running server, a seed, ways to ask and to look, and expectations to fill."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labctl import server_api
from labctl.errors import LabError
from labctl.learn import full_queue, sandbox
from labctl.measure.clients.base import InFlight
from labctl.measure.clients.sequences import SequenceClient
from labctl.measure.clients.stream import TextStream
from labctl.measure.clients.text_model import TextModel
from labctl.measure.clients.unary import UnaryClient
from labctl.measure.evidence import metrics, steplog
from labctl.measure.records import RequestRecord
from labctl.measure.workloads.engine_stream import BLOCK
from labctl.measure.workloads.load import closed_loop
from labctl.runtimes import processes
from labctl.runtimes.base import Endpoints
from labctl.trtllm import interface

LOAD_S = 60.0
QUIET_S, LATE_S = 0.1, 2.0  # nothing new in the step log for so long; waited for at most so long


@dataclass(frozen=True)
class Check:
    """One expectation: in words, what was measured, and what it means where it does not hold."""

    name: str
    expected: str
    measured: str
    ok: bool
    sentence: str = ""


class Explained(LabError):
    """An error for which the check has a sentence of its own."""


class Stuck(LabError):
    """A model did not answer in time."""


@dataclass
class Trial:
    """One run of a check with one seed. Clients and prompts must come from ``rng``, so that no answer can be learnt.

    Attributes:
        patience: seconds after which a request without an answer counts as stuck.
        run_dir: where the models write their step logs, on this machine.
        folder: the learner's files.
        settings: those of the stack, with defaults.
        key: opens the server's model control.
        since: time.monotonic() at the trial's beginning; :meth:`steps` reads from there on.
    """

    seed: int
    endpoints: Endpoints
    run_dir: Path
    folder: Path
    settings: Mapping[str, Any]
    tokenizer_dir: str
    patience: float
    key: str = ""
    checks: list[Check] = field(default_factory=list)
    Error: ClassVar[type[LabError]] = LabError  # what every way of asking raises
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._text_models: dict[str, TextModel] = {}
        self._behind = steplog.sizes(self.run_dir)

    # -- asking ----------------------------------------------------------------------------------------------------

    def stream(self, on_token: Callable[[RequestRecord], None] | None = None) -> TextStream:
        """A connection for decoupled text models; use as a context manager."""
        return TextStream(self.endpoints.grpc, on_token) if on_token else TextStream(self.endpoints.grpc)

    def unary(self) -> UnaryClient:
        """A connection for text models that answer once; use as a context manager."""
        return UnaryClient(self.endpoints.grpc)

    def ask(self, client: InFlight, model: str, prompt: str, tokens: int, priority: int = 0) -> RequestRecord:
        """Send one request for exactly ``tokens`` tokens to any text model, whatever its tensors are called."""
        return self._text_model(model).send(client, prompt, tokens, to_the_end=True, priority=priority)

    def at_once(self, model: str, requests: Sequence[tuple[str, int]]) -> list[RequestRecord]:
        """All requests (prompt, tokens) at once to a model that answers once. Raises as :meth:`answers`."""
        with self.unary() as client:
            records = [self.ask(client, model, prompt, tokens) for prompt, tokens in requests]
            self.wait(client, *records)
        return records

    def users(self, count: int, model: str, requests: Sequence[tuple[str, int]]) -> list[RequestRecord]:
        """``count`` users, each of whom asks again when it is answered, until all requests (prompt, tokens) are.

        Raises:
            LabError: an answer was an error, or did not come within ``patience`` seconds.
        """

        def send(stream: TextStream, number: int) -> RequestRecord:
            return self.ask(stream, model, *requests[number])

        self._text_model(model)
        return closed_loop(self.endpoints.grpc, count, len(requests), send, self.patience)

    def sequences(self, model: str) -> SequenceClient:
        """A client of a model behind a sequence batcher, over HTTP; use as a context manager."""
        return SequenceClient(self.endpoints.http, model)

    def answers(self, model: str, requests: Sequence[tuple[str, int]], **parameters: Any) -> list[RequestRecord]:
        """All requests (prompt, max_tokens) at once on one connection; returns when all have ended.

        Raises:
            Stuck: not all of them within ``patience`` seconds.
            LabError: an answer was an error.
        """
        with self.stream() as stream:
            records = [stream.send(model, prompt, max_tokens=n, **parameters) for prompt, n in requests]
            self.wait(stream, *records)
        return records

    def wait(self, client: InFlight, *records: RequestRecord) -> None:
        """Until all of them have ended. Raises as :meth:`answers`."""
        deadline = time.monotonic() + self.patience
        for record in records:
            try:
                client.wait(record, timeout=max(0.1, deadline - time.monotonic()))
            except LabError as error:
                if record.end or record.error or time.monotonic() < deadline:  # sooner: the connection broke
                    raise
                raise Stuck(f"{record.model} has not answered within {self.patience:g} s", error.why) from error

    def ended(self, client: InFlight, *records: RequestRecord) -> None:
        """Until all of them have ended, well or with an ``error``. Raises Stuck."""
        try:
            client.wait(*records, timeout=self.patience)
        except LabError as error:
            if any(not record.end for record in records):
                raise Stuck(f"{records[0].model} has not answered within {self.patience:g} s", error.why) from error

    def wait_first(self, stream: TextStream, record: RequestRecord) -> None:
        """Until its first response. Raises as :meth:`answers`."""
        try:
            stream.wait_first(record, timeout=self.patience)
        except LabError as error:
            if record.end or record.error:
                raise
            raise Stuck(f"{record.model} has not answered within {self.patience:g} s", error.why) from error

    def queued(self, requests: Sequence[full_queue.Request]) -> tuple[list[RequestRecord], list[steplog.Step]]:
        """Requests (prompt ids, tokens) to ``tensorrt_llm``, all there before the first one joins; and their steps.

        A third element holds a request's parameters, such as its tenant. Only for a stack whose
        ``max_tokens_in_paged_kv_cache`` is set. Raises as :meth:`answers`.
        """
        blocks = int(self.settings["max_tokens_in_paged_kv_cache"]) // BLOCK
        return full_queue.run(self.endpoints.grpc, requests, blocks, lambda: self.steps(interface.MODEL), self.wait)

    def in_turn(self, requests: Sequence[full_queue.Request]) -> tuple[list[RequestRecord], list[steplog.Step]]:
        """The same requests, but each is sent when the one before it is answered. Raises as :meth:`answers`."""
        return full_queue.run_in_turn(self.endpoints.grpc, requests, lambda: self.steps(interface.MODEL), self.wait)

    def parameters(self, model: str) -> dict[str, str]:
        """Those of the model's configuration, as the server has it now."""
        config = server_api.model_config(self.endpoints.http, model)
        return {name: value["string_value"] for name, value in config["parameters"].items()}

    def load_with(self, model: str, **parameters: str) -> None:
        """Load the model anew, with other parameters than its config.pbtxt says; they stay until the next load.

        Only where each trial sets what it needs: the next one finds the model as this one leaves it.
        """
        config = server_api.model_config(self.endpoints.http, model)
        config["parameters"] |= {name: {"string_value": value} for name, value in parameters.items()}
        server_api.unload_model(self.endpoints.http, model, LOAD_S, self.key)
        server_api.load_model(self.endpoints.http, model, LOAD_S, self.key, config)

    def client(self, script: str, *arguments: str) -> Any:
        """Run the learner's script with the endpoints as arguments before ``arguments``; what it prints, as JSON.

        Raises:
            Stuck: it has not ended in time.
            LabError: its own last words, with file and line.
        """
        argv = [sys.executable, str(self.folder / script), self.endpoints.http, self.endpoints.grpc, *arguments]
        ended = processes.run_short(argv, cwd=self.folder, seconds=2 * self.patience)
        if ended is None:
            raise Stuck(f"{script} has not ended within {2 * self.patience:g} s", "is there a loop without an end?")
        code, out, err = ended
        if code:
            raise LabError(f"{script} failed", sandbox.own_lines(err, self.folder))
        try:
            return json.loads(out)
        except ValueError as error:
            raise LabError(f"{script} printed no JSON", repr(out[-200:])) from error

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        """The learner's function in a process of its own, with a limit of time and memory.

        Raises as :meth:`client`.
        """
        return sandbox.call(self.folder / script, function, arguments, seconds=self.patience)

    def _text_model(self, name: str) -> TextModel:
        if name not in self._text_models:
            self._text_models[name] = TextModel.of(self.endpoints.grpc, name)
        return self._text_models[name]

    # -- looking ---------------------------------------------------------------------------------------------------

    def steps(self, model: str = "") -> list[steplog.Step]:
        """What the models executed since the trial began, in order.

        A step's line is written after its answers are sent: what is read is what stays the same for a moment.
        """
        deadline, before = time.monotonic() + LATE_S, -1
        while len(steps := steplog.read(self.run_dir, model, self.since, self._behind)) != before:
            if time.monotonic() > deadline:  # somebody is still being answered
                break
            before = len(steps)
            time.sleep(QUIET_S)
        return steps

    def counters(self) -> metrics.Snapshot:
        """Triton's own counters now."""
        return metrics.scrape(self.endpoints.metrics)

    def page(self) -> str:
        """The metrics page now, as a collector reads it."""
        return metrics.page(self.endpoints.metrics)

    def settled(self, value: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = 5.0) -> Any:
        """``value()`` as soon as it is as wanted, or whatever it is when the time is over (counters lag a little)."""
        deadline = time.monotonic() + seconds
        while not wanted(now := value()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return now

    # -- judging ---------------------------------------------------------------------------------------------------

    def expect(self, name: str, expected: str, measured: object, ok: bool, sentence: str) -> bool:
        """Note one expectation; ``sentence`` says what it means, and where to look, if it does not hold."""
        self.checks.append(Check(name, expected, str(measured), bool(ok), "" if ok else sentence))
        return bool(ok)

    @contextmanager
    def explained(self, sentence: str) -> Iterator[None]:
        """An error inside the block fails the trial with ``sentence``; what was really said is shown as measured."""
        try:
            yield
        except Stuck:
            raise
        except LabError as error:
            raise Explained(sentence, "; ".join(filter(None, (error.what, error.why)))) from error

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)
