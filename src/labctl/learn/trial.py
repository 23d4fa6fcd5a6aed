"""What a ``check.py`` is given: a running server, a seed, ways to ask and to look, and expectations to fill."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labctl.learn import faults, promtool, sandbox
from labctl.learn.full_queue import FullQueue
from labctl.learn.outcome import Check, Explained, Stuck
from labctl.runtimes.record import Endpoints
from labctl.triton import server_api
from labkit.clients.base import InFlight
from labkit.clients.sequences import SequenceClient
from labkit.clients.stream import TextStream
from labkit.clients.text_model import TextModel
from labkit.clients.unary import UnaryClient
from labkit.errors import LabError
from labkit.evidence import metrics, steplog
from labkit.records import RequestRecord
from labkit.waiting import attempts
from labkit.workloads.load import closed_loop

LOAD_S = 60.0
QUIET_S, LATE_S = 0.1, 2.0  # nothing new in the step log for so long; waited for at most so long


@dataclass
class Trial(FullQueue):
    """One run of a check with one seed: the ways to ask, to look and to judge.

    Clients and prompts must come from ``rng``, so that no answer can be learnt.
    """

    seed: int
    endpoints: Endpoints
    run_dir: Path  # where the models write their step logs, on this machine
    folder: Path  # the learner's files
    settings: Mapping[str, Any]  # of the stack, with defaults
    tokenizer_dir: str
    patience: float  # seconds after which a request without an answer counts as stuck
    key: str = ""  # opens the server's model control
    servers: tuple[str, ...] = ()  # the gRPC endpoint of each replica
    checks: list[Check] = field(default_factory=list)
    Error: ClassVar[type[LabError]] = LabError  # what every way of asking raises
    since: float = field(default_factory=time.monotonic)  # its beginning: `steps` reads from there on
    given: tuple[str, Any] | None = None  # what the learner's script or function gave last, and its name

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._text_models: dict[str, TextModel] = {}
        self._behind = steplog.sizes(self.run_dir)

    # -- asking ----------------------------------------------------------------------------------------------------

    def stream(self, on_token: Callable[[RequestRecord], None] | None = None) -> TextStream:
        """A connection for decoupled text models; use as a context manager."""
        return TextStream(self.endpoints.grpc, on_token)

    def unary(self) -> UnaryClient:
        """A connection for text models that answer once; use as a context manager."""
        return UnaryClient(self.endpoints.grpc)

    def ask(self, client: InFlight, model: str, prompt: str, tokens: int, priority: int = 0) -> RequestRecord:
        """Send one request for exactly ``tokens`` tokens to any text model, whatever its tensors are called."""
        return self._text_model(model).send(client, prompt, tokens, to_the_end=True, priority=priority)

    def at_once(self, model: str, requests: Sequence[tuple[str, int]]) -> list[RequestRecord]:
        """All requests (prompt, tokens) at once to a model that answers once. Raises as :meth:`wait`."""
        with self.unary() as client:
            records = [self.ask(client, model, prompt, tokens) for prompt, tokens in requests]
            self.wait(client, *records)
        return records

    def users(self, count: int, model: str, requests: Sequence[tuple[str, int]]) -> list[RequestRecord]:
        """``count`` users, each of whom asks again when it is answered, until all requests (prompt, tokens) are.

        Raises LabError: an answer was an error, or did not come within ``patience`` seconds.
        """

        def send(stream: TextStream, number: int) -> RequestRecord:
            return self.ask(stream, model, *requests[number])

        self._text_model(model)
        return closed_loop(self.endpoints.grpc, count, len(requests), send, self.patience)

    def sequences(self, model: str) -> SequenceClient:
        """A client of a model behind a sequence batcher, over HTTP; use as a context manager."""
        return SequenceClient(self.endpoints.http, model)

    def answers(self, model: str, requests: Sequence[tuple[str, int]], **parameters: Any) -> list[RequestRecord]:
        """All requests (prompt, max_tokens) at once on one connection, when they have ended. Raises as :meth:`wait`."""
        with self.stream() as stream:
            records = [stream.send(model, prompt, max_tokens=n, **parameters) for prompt, n in requests]
            self.wait(stream, *records)
        return records

    def all_there(self, requests: Sequence[tuple[str, int]], model: str) -> list[RequestRecord]:
        """Requests (prompt, tokens) to a model in front of ``tensorrt_llm``, where all of them are before it begins."""
        self._text_model(model)
        with self.stream() as stream:
            with self._held():
                records = []
                for prompt, tokens in requests:  # each when the one before it is there: so they keep their order
                    records.append(self.ask(stream, model, prompt, tokens))
                    self._await_arrived(len(records), stream, records)
            self.wait(stream, *records)
        return records

    def parameters(self, model: str) -> dict[str, str]:
        """Those of the model's configuration, as the server has it now."""
        return {name: value["string_value"] for name, value in self.config(model)["parameters"].items()}

    def config(self, model: str) -> dict[str, Any]:
        """The model's configuration, as the server has it now."""
        return server_api.model_config(self.endpoints.http, model)

    def load_with(self, model: str, **parameters: str) -> None:
        """Load the model anew, with other parameters than its config.pbtxt says; they stay until the next load.

        Only where each trial sets what it needs: the next one finds the model as this one leaves it.
        """
        config = self.config(model)
        config["parameters"] |= {name: {"string_value": value} for name, value in parameters.items()}
        server_api.unload_model(self.endpoints.http, model, LOAD_S, self.key)
        server_api.load_model(self.endpoints.http, model, LOAD_S, self.key, config)

    def client(self, script: str, *arguments: str) -> Any:
        """Run the learner's script with the endpoints as arguments before ``arguments``; what it prints, as JSON.

        Raises Stuck: it has not ended in time. Raises LabError: its own last words, with file and line.
        """
        value = sandbox.script(
            self.folder / script, (self.endpoints.http, self.endpoints.grpc, *arguments), self.patience
        )
        self.given = script, value
        return value

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        """The learner's function in a process of its own, with a limit of time and memory.

        Raises as :meth:`client`.
        """
        value = sandbox.call(self.folder / script, function, arguments, seconds=self.patience)
        self.given = function, value
        return value

    def first_firings(
        self, file: str, recordings: Sequence[Mapping[str, str]], every: int, begin: int, end: int
    ) -> list[float | None]:
        """When the first of the learner's alerts fires in each recording. As :func:`promtool.first_firings`."""
        return promtool.first_firings(self.folder / file, recordings, every, begin, end)

    def _text_model(self, name: str) -> TextModel:
        if name not in self._text_models:
            self._text_models[name] = TextModel.of(self.endpoints.grpc, name)
        return self._text_models[name]

    # -- looking ---------------------------------------------------------------------------------------------------

    def steps(self, model: str = "") -> list[steplog.Step]:
        """What the models executed since the trial began, in order.

        A step's line is written after its answers are sent: what is read is what stays the same for a moment.
        """
        before = -1
        for _ in attempts(LATE_S, QUIET_S):  # at its end somebody is still being answered
            steps = steplog.read(self.run_dir, model, self.since, self._behind)
            if len(steps) == before:
                break
            before = len(steps)
        return steps

    def faults(self) -> list[faults.Fault]:
        """What the learner's model did wrong since the trial began: every exception that it raised."""
        return faults.read_faults(self.run_dir, self.since)

    def counters(self) -> metrics.Snapshot:
        """Triton's own counters now."""
        return metrics.scrape(self.endpoints.metrics)

    def page(self) -> str:
        """The metrics page now, as a collector reads it."""
        return metrics.page(self.endpoints.metrics)

    def wait_for(self, value: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = 5.0) -> Any:
        """``value()`` as soon as it is as wanted, or whatever it is when the time is over (counters lag a little)."""
        for _ in attempts(seconds, 0.05):
            if wanted(now := value()):
                break
        return now

    # -- judging ---------------------------------------------------------------------------------------------------

    def expect(self, name: str, expected: str, measured: object, ok: bool, sentence: str) -> bool:
        """Note one expectation; ``sentence`` says what it means, and where to look, if it does not hold."""
        self.checks.append(Check(name, expected, str(measured), bool(ok), "" if ok else sentence))
        return bool(ok)

    @contextmanager
    def explain_errors(self, sentence: str, because: str = "") -> Iterator[None]:
        """An error inside the block fails the trial with ``sentence``; what was really said is shown as measured.

        ``because``: a regular expression; any other error than one that it is found in is told as it is.
        """
        try:
            yield
        except (Stuck, Explained):
            raise
        except LabError as error:
            why = "; ".join(filter(None, (error.what, error.why)))
            said = "\n".join((why, *(fault.words for fault in self.faults())))
            if not re.search(because, said):
                raise
            raise Explained(sentence, why) from error

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)
