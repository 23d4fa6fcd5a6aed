"""What a ``check.py`` is given: a running server, a seed, ways to ask and to look, and expectations to fill."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labctl.clock import Clock, PauseLimit
from labctl.contention import STRETCHED, Patience
from labctl.learn import faults, promtool, sandbox
from labctl.learn.outcome import Check, Explained, Slow, Stuck, TooBusy
from labctl.learn.server import LOAD_S
from labctl.runtimes.record import Endpoints
from labctl.stack.faults import stuck_sentences
from labctl.triton import server_api
from labkit.client import identity, metrics, trtllm
from labkit.client.ask import InFlightClient, TextStream, UnaryClient, kind_of
from labkit.client.sequences import SequenceClient
from labkit.client.text_model import TextModel
from labkit.errors import LabError
from labkit.evidence import steplog
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts
from labsched.run_queue import RunQueue
from labsched.step import Step

SLOWER = 3  # times its patience a check waits while answers still come
LOOK_S = 0.01
THERE_S = 60.0  # a request has arrived by then, on however busy a machine
WRITTEN_S = 10.0  # a step is written down by then
HELD = PauseLimit(400.0, "would wait for ever")  # should the check die, the clock goes on by itself
QUIET_S, LATE_S = 0.1, 2.0  # a step log that has not grown for QUIET_S is complete; LATE_S is the longest wait
# Token ids of the prompt, tokens to generate; and parameters of the request, where it has any.
Request = tuple[Sequence[int], int] | tuple[Sequence[int], int, Mapping[str, Any]]


@dataclass
class Trial:
    """One run of a check with one seed: the ways to ask, to look and to judge.

    Clients and prompts must come from ``rng``, so that no answer can be learnt.
    """

    seed: int
    endpoints: Endpoints
    run_dir: Path  # where the models write their step logs, on this machine
    folder: Path  # the learner's files
    settings: Mapping[str, Any]  # of the stack, with defaults
    tokenizer_dir: str | None
    patience: float  # seconds after which a request without an answer counts as stuck
    key: str | None = None  # opens the server's model control
    servers: tuple[str, ...] = ()  # the gRPC endpoint of each replica
    pids: Callable[[], Iterable[int]] | None = None  # the processes that serve and ask; None where that is not known
    checks: list[Check] = field(default_factory=list)
    Error: ClassVar[type[LabError]] = LabError  # what every way of asking raises
    TooBusy: ClassVar[type[TooBusy]] = TooBusy  # raised where the machine is too busy to judge
    since: float = field(default_factory=time.monotonic)  # its beginning: `steps` reads from there on
    given: tuple[str, Any] | None = None  # what the learner's script or function gave last, and its name

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._text_models: dict[str, TextModel] = {}
        self._behind = steplog.log_sizes(self.run_dir)

    # -- asking ----------------------------------------------------------------------------------------------------

    def stream(self, on_token: Callable[[RequestRecord], None] | None = None) -> TextStream:
        """A connection for decoupled text models; use as a context manager."""
        return TextStream(self.endpoints.grpc, on_token)

    def unary(self) -> UnaryClient:
        """A connection for text models that answer once; use as a context manager."""
        return UnaryClient(self.endpoints.grpc)

    def ask(self, client: InFlightClient, model: str, prompt: str, tokens: int, priority: int = 0) -> RequestRecord:
        """Send one request for exactly ``tokens`` tokens to any text model, whatever its tensors are called."""
        return self._text_model(model).send(client, prompt, tokens, to_the_end=True, priority=priority)

    def at_once(self, model: str, requests: Sequence[tuple[str, int]]) -> list[RequestRecord]:
        """All requests (prompt, tokens) at once to a model that answers once. Raises as :meth:`wait`."""
        with self.unary() as client:
            records = [self.ask(client, model, prompt, tokens) for prompt, tokens in requests]
            self.wait(client, *records)
        return records

    def gathered(self, model: str, requests: Sequence[tuple[str, int]], at: str) -> list[RequestRecord]:
        """Send requests (prompt, tokens) to a model that answers once; hold ``at``, a part of it, until all are there.

        So their batches are those of the configuration, however slowly a busy machine hands requests over. Raises as
        :meth:`wait`, and Stuck: they did not arrive.
        """

        def there() -> int:
            return self._clock.held_requests(at) + int(self.counters().models[at].pending)

        with self.unary() as client:
            with self._held(at):
                records = [self.ask(client, model, prompt, tokens) for prompt, tokens in requests]
                self._await_arrived(len(records), client, records, there)
            self.wait(client, *records)
        return records

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
        """Send requests (prompt, tokens) through an ensemble, and hold the engine until all have arrived in it."""
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
        """The parameters of the model's configuration, as the server has it now."""
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
            self.folder / script,
            (self.endpoints.http, self.endpoints.grpc, *arguments),
            self.patient(2 * self.patience),
        )
        self.given = script, value
        return value

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        """The learner's function in a process of its own, with a limit of time and memory.

        Raises as :meth:`client`.
        """
        value = sandbox.call_in_sandbox(self.folder / script, function, arguments, self.patient(self.patience))
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

    # -- asking an engine whose clock stands still: its steps then repeat exactly ------------------------------------

    def send_queued(
        self, requests: Sequence[Request], later: Sequence[tuple[int, Request]] = ()
    ) -> tuple[list[RequestRecord], list[Step]]:
        """Send all requests, in order, before the engine's first step; the answered requests, and their steps.

        ``later``: other requests, each with the number of steps after which it arrives.
        """
        done = 0
        with self.stepping(requests) as run:
            for after, request in later:
                if after > done:
                    self._clock.step(after - done, trtllm.MODEL)
                    done = after
                run.send(request)
        return run.records, self._steps_of(run.records, [*requests, *(request for _, request in later)])

    def in_turn(self, requests: Sequence[Request]) -> tuple[list[RequestRecord], list[Step]]:
        """Send each request when the one before it is answered; the answered requests, and the steps they were in."""
        length, records = self._length(), []
        with TextStream(self.endpoints.grpc) as stream:
            for request in requests:
                records.append(_send(stream, request, length))
                self.wait(stream, records[-1])
        return records, self._steps_of(records, requests)

    @contextmanager
    def stepping(self, requests: Sequence[Request]) -> Iterator[Stepped]:
        """Send all requests before the engine's first step; its clock then stands still but for the steps granted.

        When the block ends the clock goes on, and all requests are answered.
        """
        length = self._length()
        with TextStream(self.endpoints.grpc) as stream:  # one stream hands its requests over in order
            with self._held():
                records = [_send(stream, request, length) for request in requests]
                self._await_arrived(len(records), stream, records)
                yield Stepped(self, stream, length, records)
            for record in records:
                self.wait(stream, record)

    @contextmanager
    def _held(self, model: str = trtllm.MODEL) -> Iterator[None]:
        """While the block runs, the model begins only the steps that are granted one by one."""
        clock = Clock(self.run_dir, (model,), HELD)
        clock.pause()
        try:
            yield
        finally:
            clock.run()

    def _await_arrived(
        self,
        count: int,
        client: InFlightClient,
        records: Sequence[RequestRecord],
        counted: Callable[[], int] | None = None,
    ) -> None:
        """Until so many requests are there: in the engine by its own account, or as ``counted`` says.

        ``client``: the connection on which ``records`` were sent. Raises Stuck: they did not arrive. Raises LabError:
        one of them was refused, or the connection broke.
        """
        for _ in self._looks(THERE_S):
            there = counted() if counted else self._clock.held_requests(trtllm.MODEL)
            if there >= count:
                return
            if refused := next((record for record in records if record.error), None):
                raise LabError(f"{refused.model} answered with an error", refused.error, code="model-error")
            client.check()
        raise Stuck(f"{there} of {count} requests had arrived after {THERE_S:g} s", code="requests-missing")

    @property
    def _clock(self) -> Clock:
        return Clock(self.run_dir, (trtllm.MODEL,), HELD)

    def _length(self) -> type[Any]:
        return kind_of(self.endpoints.grpc, trtllm.MODEL, trtllm.OUTPUT_LENGTH)

    def _steps_of(self, records: Sequence[RequestRecord], requests: Sequence[Request]) -> list[Step]:
        """The steps of these requests. An answer is sent before its step is written: so that is waited for."""
        tokens = sum(request[1] for request in requests)
        for _ in self._looks(WRITTEN_S):
            theirs = _with(records, self.steps(trtllm.MODEL))
            if sum(sum(step.made) for step in theirs) >= tokens:
                break
        return theirs

    # -- waiting: too long is a fault of the model, and a busy machine is none ---------------------------------------

    def patient(self, seconds: float) -> Patience:
        """A limit in seconds. Time in which the server or a client waited for a processor does not count."""
        return Patience(seconds, RunQueue(self.pids).waited if self.pids else None)

    def is_over(self, patience: Patience) -> bool:
        """Whether that limit is over. Raises TooBusy where it is only because the machine was busy for too long."""
        if patience.left():
            return False
        if patience.stretched:
            raise TooBusy(f"what takes {patience.seconds:g} s at most had not ended after {STRETCHED} times as long")
        return True

    def _looks(self, seconds: float, pause: float = LOOK_S) -> Iterator[None]:
        """Yield now and then until ``seconds`` are over. Raises as :meth:`is_over`."""
        patience = self.patient(seconds)
        while patience.left():
            yield
            time.sleep(pause)
        yield
        self.is_over(patience)

    def wait(self, client: InFlightClient, *records: RequestRecord) -> None:
        """Until all of them have ended.

        Raises:
            Stuck: no answer within the patience, or none in the last half of it.
            Slow: answers still come after ``SLOWER`` times the patience.
            TooBusy: the machine was too busy to tell.
            LabError: a request failed, or the connection broke.
        """
        whole, half = self.patient(SLOWER * self.patience), self.patient(self.patience / 2)
        halves, before = 0, 0
        for record in records:
            while not record.end:
                try:
                    client.wait(record, timeout=half.left())
                except LabError as error:
                    if record.end or record.error:
                        raise
                    client.check()  # raises for a connection that broke: waiting longer would not help
                    if half.left():
                        continue
                    halves, came = halves + 1, sum(len(one.responses) for one in records)
                    if halves > 1 and came == before:
                        raise self._stuck(record, half, error.why) from error
                    if self.is_over(whole):
                        slow = f"{record.model} still answers after {SLOWER * self.patience:g} s, but slowly"
                        raise Slow(
                            f"{slow} ({came} tokens so far): what takes long in a step?", code="model-slow"
                        ) from error
                    half, before = (
                        self.patient(self.patience / 2),
                        came,
                    )  # it still answers: a slow machine is not a mistake of the learner
        client.wait(*records, timeout=1.0)

    def wait_ended(self, client: InFlightClient, *records: RequestRecord) -> None:
        """Until all of them have ended, well or with an ``error``. Raises as :meth:`wait`."""
        patience = self.patient(self.patience)
        for record in records:
            while not client.ended(record, timeout=patience.left()):
                if not patience.left():
                    raise self._stuck(record, patience)
        if any(not record.end for record in records):
            client.check()

    def wait_first(self, stream: TextStream, record: RequestRecord) -> None:
        """Until its first response. Raises as :meth:`wait`."""
        patience = self.patient(self.patience)
        while True:
            try:
                return stream.wait_first(record, timeout=patience.left())
            except LabError as error:
                if record.end or record.error:
                    raise
                stream.check()
                if not patience.left():
                    raise self._stuck(record, patience, error.why) from error

    def _stuck(self, record: RequestRecord, patience: Patience, why: str | None = None) -> Stuck:
        """The error for a silent model. Raises TooBusy if the machine was busy and no model says that it hangs."""
        if not stuck_sentences(self.run_dir):
            self.is_over(patience)
        return Stuck(f"{record.model} has not answered within {self.patience:g} s", why or "", code="model-silent")

    # -- looking ---------------------------------------------------------------------------------------------------

    def steps(self, model: str | None = None) -> list[Step]:
        """What the models executed since the trial began, in order.

        A step's line is written after its answers are sent: what is read is what stays the same for a moment.
        """
        before: int | None = None
        for _ in attempts(LATE_S, QUIET_S):  # at the end of that time a request may still be being answered
            steps = steplog.read_step_log(self.run_dir, model, self.since, self._behind)
            if len(steps) == before:
                break
            before = len(steps)
        return steps

    def faults(self) -> list[faults.ObservedFault]:
        """What the learner's model did wrong since the trial began: every exception that it raised."""
        return faults.read_faults(self.run_dir, self.since)

    def counters(self) -> metrics.Snapshot:
        """Triton's own counters now."""
        return metrics.scrape(self.endpoints.metrics)

    def page(self) -> str:
        """The metrics page now, as a collector reads it."""
        return metrics.metrics_page(self.endpoints.metrics)

    def wait_for(self, value: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = 5.0) -> Any:
        """``value()`` as soon as it is as wanted, or whatever it is when the time is over (counters lag a little).

        Raises TooBusy.
        """
        for _ in self._looks(seconds, 0.05):
            if wanted(now := value()):
                break
        return now

    # -- judging ---------------------------------------------------------------------------------------------------

    def expect(
        self, name: str, expected: str, measured: object, ok: bool, sentence: str, predicted: bool = False
    ) -> bool:
        """Note one expectation; ``sentence`` says what it means, and where to look, if it does not hold.

        ``predicted``: what the server did is expected of the learner's file.

        Raises LabError: it does not hold, and there is no sentence.
        """
        if not ok and not sentence.strip():
            raise LabError(
                f"{name}: expected {expected}, measured {measured}",
                "no sentence says why: this is a fault of the exercise",
                code="exercise-broken",
            )
        self.checks.append(Check(name, expected, str(measured), bool(ok), "" if ok else sentence, predicted))
        return bool(ok)

    @contextmanager
    def explain_errors(self, sentence: str, because: str | None = None) -> Iterator[None]:
        """An error inside the block fails the trial with ``sentence``; what was really said is shown as measured.

        ``because``: a regular expression; an error in which it is not found is raised as it is.
        """
        try:
            yield
        except (Stuck, Explained, TooBusy):
            raise
        except LabError as error:
            why = "; ".join(filter(None, (error.what, error.why)))
            evidence = "\n".join((why, *(fault.words for fault in self.faults())))
            if because and not re.search(because, evidence):
                raise
            raise Explained(sentence, why, code="answer-explained") from error

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)


@dataclass(frozen=True)
class Stepped:
    """Requests in an engine that computes a step when it is told to."""

    trial: Trial
    stream: TextStream
    length: type[Any]  # of the tensor that says how many tokens to generate
    records: list[RequestRecord]

    def step(self, count: int = 1) -> list[Step]:
        """Grant ``count`` steps. Returns all steps of these requests so far."""
        self.trial._clock.step(count, trtllm.MODEL)
        return _with(self.records, self.trial.steps(trtllm.MODEL))

    def send(self, request: Request) -> None:
        """Send one more request, when the engine waits for its next step or has nothing to do. Raises Stuck."""
        clock = self.trial._clock
        for _ in self.trial._looks(THERE_S):
            if any(state["state"] == "held" or not state.get("left", 1) for state in clock.states(trtllm.MODEL)):
                break
        else:
            raise Stuck("the engine has not come to its next step", code="step-unended")
        there = clock.held_requests(trtllm.MODEL)
        self.records.append(_send(self.stream, request, self.length))
        self.trial._await_arrived(there + 1, self.stream, self.records)


def _with(records: Sequence[RequestRecord], steps: Sequence[Step]) -> list[Step]:
    """The steps in which one of these requests was."""
    ids = {record.id for record in records}
    return [step for step in steps if ids & {*step.ids}]


def _send(stream: TextStream, request: Request, length: type[Any]) -> RequestRecord:
    ids, limit, *more = request
    return identity.send_ids(stream, identity.Ids("", list(ids), limit), length, **(more[0] if more else {}))
