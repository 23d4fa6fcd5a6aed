"""Waits until a stack really serves: the process runs, Triton is live, every model is READY, and each answers once.

An UNAVAILABLE model never becomes READY by waiting, and a server that has exited never comes back: both end the wait
at once, with Triton's own reason and the last log lines. For Triton, a model whose python stub has died is still READY.
So the wait ends with one tiny inference per model (the manifest's ``probes``).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from labctl.lab import Probe
from labctl.triton import server_api
from labctl.triton.server_api import (
    ModelState,
    Unreachable,
    call_triton,
    is_live,
    locate_error,
    model_states,
    triton_message,
)
from labkit.errors import LabError

POLL_S = 0.05
PROBE_S = 2.0  # for an answer of a model that Triton calls READY: a slower one is busy
LOG_S = 0.25  # between two looks into the log
LOADED = re.compile(r"successfully loaded '([^']+)'")
# protobuf's own line, which comes before: a newer Triton's begins otherwise, but says the same.
UNREAD = re.compile(r"Error parsing text-format inference\.ModelConfig: (?P<line>\d+):(?P<column>\d+): (?P<words>.*)")
POLL_FAILED = re.compile(
    r"(Poll failed for model directory '(?P<model>[^']+)': "
    r"|failed to load model '(?P<none>[^']+)': (?=at least one version must be available))(?P<reason>.*?)\"?$"
)
FAILED = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*)", re.DOTALL)
DEAD_STUB = re.compile(r"Stub process '(?P<model>.+)_\d+_\d+' is not healthy")
LOG_TAIL = 12
UNHEALTHY = "is not healthy"  # Triton's words for a stub that has ended, or has not said for a moment that it lives
# Triton waits 10 s for the process of a model; then it goes on with locks that nobody has made (server#8882).
ABORT = "boost::interprocess::lock_exception"
ABORTED = "server-aborted"
ABORTED_WHY = "this machine is too busy: Triton aborts where a model's process does not begin within 10 s"
T = TypeVar("T")


def aborted(log: Iterable[str]) -> bool:
    """Whether the server ended itself because the process of a model did not begin in time, as on a busy machine."""
    return any(ABORT in line for line in log)


def start_once_more(start: Callable[[], T], note: Callable[[str], object]) -> T:
    """Start a server or load a model; once more where it fails as on a very busy machine. Raises LabError."""
    try:
        return start()
    except LabError as error:
        if error.code != ABORTED and not any(UNHEALTHY in text for text in (error.what, error.why, *error.details)):
            raise
    note("Triton gave the process of a model up, as it does on a very busy machine: once more")
    return start()


def probe(
    endpoint: str, model: str, request: Probe, timeout: float, stuck: Callable[[], Sequence[str]] = tuple
) -> None:
    """One tiny real inference. Raises LabError if the model answers with an error, in Triton's words, or not at all.

    Args:
        stuck: what is known of models that hang in an execution; the first sentence ends the wait.
    """
    answer = _ask(endpoint, f"/v2/models/{model}/{request.path}", request.body, timeout)
    silent = f"model {model} is READY but does not answer"
    while not wait([answer], POLL_S).done:
        if sentences := stuck():
            raise LabError(silent, sentences[0], code="model-silent")
    try:
        status, body = answer.result()
    except Unreachable as error:
        raise LabError(silent, str(error), code="model-silent") from error
    text = body.decode(errors="replace").strip()
    if status != 200 or '"error"' in text[:200]:
        raise LabError(f"model {model} is READY but answers with an error", triton_message(text), code="model-error")


def _ask(endpoint: str, path: str, body: Any, timeout: float) -> Future[tuple[int, bytes]]:
    """Send a request; a daemon thread waits for the answer."""
    answer: Future[tuple[int, bytes]] = Future()

    def ask() -> None:
        try:
            answer.set_result(call_triton(endpoint, "POST", path, body, timeout))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def failing_models(endpoint: str, probes: Mapping[str, Probe]) -> dict[str, str]:
    """Models that Triton calls READY and that answer a probe with an error, in Triton's words; a slow model is busy.

    If a python stub has died, the result names its model, not the ensemble around it.
    """
    failing = {}
    for model, request in probes.items():
        try:
            probe(endpoint, model, request, PROBE_S)
        except LabError as error:
            if not isinstance(error.__cause__, Unreachable):
                match = DEAD_STUB.search(error.why)
                failing[match["model"] if match else model] = error.why
    return failing


@dataclass(frozen=True)
class ServerOutside:
    """Facts about a server that need no request to it, while it is not ready.

    Attributes:
        exited: how it ended, None while it runs.
        tail: its last log lines, for the error.
        log: all log lines. Triton answers no request until its models are loaded; only its log shows its progress.
        stuck: as :func:`probe` takes it.
    """

    exited: Callable[[], str | None]
    tail: Callable[[], Iterable[str]]
    log: Callable[[], Iterable[str]] = tuple
    stuck: Callable[[], Sequence[str]] = tuple


def wait_ready(
    endpoint: str,
    models: Sequence[str],
    probes: Mapping[str, Probe],
    server: ServerOutside,
    *,
    timeout: float,
    spent: float = 0.0,
    progress: Callable[[str], None],
    secret: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> list[ModelState]:
    """Return when the server is live, every model READY and every probe answered.

    Args:
        timeout: seconds for all of it.
        spent: how many of these seconds have passed already; at least one is left.

    Raises:
        LabError: the server ended, a model is UNAVAILABLE (Triton's reason), or the time is over.
    """
    deadline = clock() + max(1.0, timeout - spent)
    states: list[ModelState] = []
    answered, look = False, clock()
    while True:
        if how := server.exited():
            busy = aborted(server.log())
            raise LabError(
                f"the server ended before it was ready: {how}",
                ABORTED_WHY if busy else "",
                "the same command again, with less running" if busy else "",
                details=[*server.tail()][-LOG_TAIL:],
                code=ABORTED if busy else "server-died",
            )
        with contextlib.suppress(Unreachable):
            states, answered = model_states(endpoint, secret), True
        begun = {state.name for state in states if state.state}
        if clock() >= look and not begun.issuperset(models):
            states = _complete_from_log(states if answered else [], [*server.log()], models)
            look = clock() + LOG_S
        _refuse_unavailable(states, models)
        ready = {state.name for state in states if state.state == "READY"}
        missing = [name for name in models if name not in ready]
        progress(_summary(states, models))
        if not missing and is_live(endpoint):
            break
        if clock() >= deadline:
            raise LabError(
                f"not ready within {timeout:g} s: {', '.join(missing) or 'the server'}",
                "the server is still loading" if answered else "the server does not answer yet",
                "allow more time with --timeout, or see labctl logs",
                details=[*server.tail()][-LOG_TAIL:],
                code="not-ready-in-time",
            )
        pause(POLL_S)
    for model, request in probes.items():
        progress(f"asking {model} for a first answer")
        try:
            probe(endpoint, model, request, max(1.0, deadline - clock()), server.stuck)
        except LabError as error:
            how = server.exited()
            why = f"{error.why}; the server ended: {how}" if how else error.why
            raise LabError(
                error.what, why, "labctl logs", details=[*server.tail()][-LOG_TAIL:], code=error.code
            ) from error
    return states


def _complete_from_log(states: Sequence[ModelState], log: Sequence[str], models: Sequence[str]) -> list[ModelState]:
    """The states, with facts that only the log has: a silent server's progress, and a config.pbtxt that it refuses."""
    lines = [server_api.message(line) for line in log]
    loaded = {match[1] for line in lines if (match := LOADED.search(line))}
    failed = {match["model"]: match["reason"] for line in lines if (match := FAILED.search(line))}
    if not states and (loaded or failed):  # before its first model is loaded, nothing is known of a silent server
        states = [ModelState(name, "", "READY" if name in loaded else "LOADING", "") for name in models]
        states = [ModelState(s.name, "", "UNAVAILABLE", failed[s.name]) if s.name in failed else s for s in states]
    # Of several refusals of a model the last one holds. No API of Triton gives its reason.
    refused = {model: reason for model, reason in each_refusal(log) if model in models}
    known = [state for state in states if state.name not in refused]
    return known + [ModelState(model, "", "UNAVAILABLE", reason) for model, reason in refused.items()]


def each_refusal(log: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Every refusal of a model's configuration in a log, in order: the model, and why, with the line if it has one."""
    cause = ""
    for line in log:
        if match := UNREAD.search(line):  # the first is the cause of the following ones
            cause = cause or f": line {match['line']}, column {match['column']}: {match['words']}"
        elif match := POLL_FAILED.search(line):
            yield match["model"] or match["none"], match["reason"] + (cause if "text proto" in match["reason"] else "")
            cause = ""


def _refuse_unavailable(states: Sequence[ModelState], models: Sequence[str]) -> None:
    failed = [state for state in states if state.state == "UNAVAILABLE" and state.name in models]
    # An ensemble fails because a step of it failed: the cause comes first, and is waited for while it still loads.
    failed.sort(key=lambda state: "depends on" in state.reason)
    loading = any(state.state == "LOADING" for state in states)
    if failed and not (loading and "depends on" in failed[0].reason):
        names = ", ".join(dict.fromkeys(state.name for state in failed))
        raise LabError(
            f"Triton could not load {names}",
            _short(failed[0]),
            "labctl logs has the details",
            details=[f"{state.name}: {_short(state)}" for state in failed[1:]],
            code="model-load-failed",
        )


def _short(state: ModelState) -> str:
    """Triton's reason on one line, with the first place in a model's own file (the log has the whole stack)."""
    words, _, frames = state.reason.partition("\n\nAt:")
    own = next((line.strip() for line in frames.splitlines() if "/model.py(" in line), "")
    words = locate_error(" ".join(words.split()), state.name, state.version) or "Triton gives no reason"
    return f"{words} At: {own}" if own else words


def _summary(states: Sequence[ModelState], models: Sequence[str]) -> str:
    if not states:
        return "waiting for the server to answer"
    known = {state.name: state.state or "waiting" for state in states}
    return ", ".join(f"{name} {known.get(name, 'waiting').lower()}" for name in models)
