"""How a trial waits for answers: stuck, slow, refused, disconnected; and a learner's function in its own process."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from lab_errors import lab_error

from labctl.clock import Clock
from labctl.contention import Patience
from labctl.learn import promtool, sandbox
from labctl.learn.outcome import Explained, Slow, Stuck, TooBusy
from labctl.learn.trial import Trial
from labctl.runtimes import docker_engine, images, processes
from labctl.runtimes.record import Endpoints
from labkit.client.ask import InFlightClient, Tell, TextStream
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord


class Silent(InFlightClient):
    """A connection on which nothing comes any more."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")

    def answered(self, error: str = "") -> RequestRecord:
        record = self.send_inputs("m", "a prompt", [])
        with self._changed:
            self._end(record, record.start + 1, error)
        return record

    def _hand_over(self, record: RequestRecord, inputs: list[object], priority: int) -> None:
        pass


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A trial on a machine on which nobody waits for a processor."""
    monkeypatch.setattr(Trial, "patient", lambda self, seconds: Patience(seconds, lambda: 0.0))
    nowhere = Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
    return Trial(1, nowhere, tmp_path, tmp_path, {}, "", patience=0.05)


def test_a_check_may_wait_for_refusals_but_not_for_ever(trial: Trial) -> None:
    with Silent() as client:
        refused = client.answered("Request timeout expired")
        trial.wait_ended(client, client.answered(), refused)
        with lab_error("model-error", "Request timeout expired"):
            trial.wait(client, refused)
        with lab_error("model-silent", "0.05 s", kind=Stuck):
            trial.wait_ended(client, refused, client.send_inputs("m", "a prompt", []))


def busy(seconds: float) -> Patience:
    """That of a machine on which every second is waited for a processor."""
    return Patience(seconds, time.monotonic)


WAITS: list[Callable[[Trial, Silent, RequestRecord], object]] = [
    lambda trial, client, record: trial.wait(client, record),
    lambda trial, client, record: trial.wait_ended(client, record),
    lambda trial, client, record: trial.wait_for(lambda: 0, lambda value: value > 0),
]


@pytest.mark.parametrize("wait", WAITS, ids=["wait", "wait_ended", "wait_for"])
def test_what_waits_for_a_processor_all_the_time_is_not_judged(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, wait: Callable[[Trial, Silent, RequestRecord], object]
) -> None:
    monkeypatch.setattr(trial, "patient", lambda seconds: busy(0.05))
    with Silent() as client, lab_error("machine-busy", kind=TooBusy):
        wait(trial, client, client.send_inputs("m", "a prompt", []))


def test_a_model_that_says_itself_that_it_hangs_is_judged_on_a_busy_machine_too(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = {"model": "m", "since": time.time() - 8, "steps": 0, "file": "exercises/02a/model.py", "line": 27}
    (trial.run_dir / "stuck-m-0.json").write_text(json.dumps(note))
    monkeypatch.setattr(trial, "patient", busy)
    trial.patience = 0.4  # the look at what the model says comes seconds before the whole patience is over
    with Silent() as client, lab_error("model-silent", kind=Stuck):
        trial.wait(client, client.send_inputs("m", "a prompt", []))


def test_a_connection_that_breaks_is_not_taken_for_a_model_that_does_not_answer(trial: Trial) -> None:
    trial.patience = 30.0
    with Silent() as client:
        waiting = client.send_inputs("m", "a prompt", [])
        client._broken = "division by zero"
        with lab_error("connection-broken") as caught:
            trial.wait(client, waiting)
        assert not isinstance(caught.value, Stuck)


def test_an_error_of_the_server_is_not_called_a_broken_connection() -> None:
    """Triton's own errors name no request where several are open; the connection is whole."""
    stream = TextStream("127.0.0.1:1")
    for _ in range(2):
        stream._open[str(_)] = RequestRecord("m-1", "m", "p")
    stream._arrived(None, Exception("scheduler.py, line 27: TypeError"))
    with lab_error("request-refused", "line 27") as caught:
        stream.check()
    assert "connection" not in f"{caught.value}"


def test_gathered_requests_are_held_until_the_model_and_its_queue_have_them_all(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, client = Clock(trial.run_dir, ("part",)), Silent()
    held = {"v": 1, "model": "part", "instance": "0", "state": "held", "ids": ["1"], "queue": 1}
    queued, modes = iter([0, 1]), []

    def counters() -> SimpleNamespace:
        (trial.run_dir / "clock-part-0.json").write_text(json.dumps(held))
        modes.append(clock.mode("part")["mode"])
        return SimpleNamespace(models={"part": SimpleNamespace(pending=next(queued))})

    monkeypatch.setattr(trial, "unary", lambda: client)
    monkeypatch.setattr(trial, "ask", lambda client, model, prompt, tokens: client.send_inputs(model, prompt, []))
    monkeypatch.setattr(trial, "counters", counters)
    monkeypatch.setattr(trial, "wait", lambda client, *records: modes.append(clock.mode("part")["mode"]))
    records = trial.gathered("whole", [("a", 1), ("b", 1), ("c", 1)], "part")
    assert [record.prompt for record in records] == ["a", "b", "c"]
    assert modes == ["pause", "pause", "run"], "two were in the model, then one in its queue as well"


def test_a_model_that_is_slow_and_still_answers_is_not_told_that_it_forgot_something(trial: Trial) -> None:
    """``sleep(0.3)`` in a step is no missing RESCHEDULE."""

    class Slowly(Silent):
        def wait(self, *records: RequestRecord, timeout: float, tell: Tell | None = None) -> None:
            records[0].responses.append((time.monotonic(), "a"))
            super().wait(*records, timeout=timeout, tell=tell)

    trial.patience = 0.4
    with Slowly() as client:
        record = client.send_inputs("m", "a prompt", [])
        with lab_error("model-slow", "1.2 s", kind=Slow):
            trial.wait(client, record)


def test_an_explanation_is_only_for_its_own_error(trial: Trial) -> None:
    with (
        lab_error("answer-explained", "timed out", kind=Explained),
        trial.explain_errors("it timed out", because="timed out"),
    ):
        raise LabError("client.py failed", "timed out", code="answer-failed")
    with lab_error("answer-failed", "NameError") as caught, trial.explain_errors("it timed out", because="timed out"):
        raise LabError("client.py failed", "client.py, line 3: NameError", code="answer-failed")
    assert not isinstance(caught.value, Explained)


def test_no_expectation_that_does_not_hold_is_without_a_sentence(trial: Trial) -> None:
    assert trial.expect("steps", "6", 6, True, "") and not trial.expect("steps", "6", 7, False, "one too many.")
    for sentence in ("", " "):
        with lab_error("exercise-broken", "steps: expected 6, measured 7"):
            trial.expect("steps", "6", 7, False, sentence)
    assert [check.sentence for check in trial.checks] == ["", "one too many."]


# -- a learner's function in a process of its own ---


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(x):\n    return x / 0\n", "answer.py, line 2: ZeroDivisionError"),
        ("def f(x):\n    return bytes(2 << 30)\n", "MemoryError"),
        ("def g(x): pass\n", "has no attribute 'f'"),
        ("def f(x):\n    return {1, 2}\n", "not JSON serializable"),
        ("def f(x:\n", "SyntaxError"),
    ],
)
def test_a_function_that_goes_wrong_is_told_in_its_own_lines(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "answer.py").write_text(source)
    with lab_error("answer-failed") as caught:
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1], Patience(20))
    assert said in f"{caught.value}"
    assert "Traceback" not in f"{caught.value}"


def test_a_function_that_does_not_return_is_ended(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(x):\n    while True: pass\n")
    with lab_error("answer-unended", "0.5 s"):
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1], Patience(0.5, lambda: 0.0))


def test_a_loop_is_found_by_its_processor_time_on_the_busiest_machine(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(x):\n    while True: pass\n")
    limit = Patience(1.0)
    limit.left = lambda: 60.0  # type: ignore[method-assign]
    with lab_error("answer-unended", "1 s"):
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1], limit)


def test_a_function_that_waits_for_a_processor_all_the_time_is_not_told_that_it_loops(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(x):\n    while True: pass\n")
    with lab_error("machine-busy", kind=TooBusy):
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1], busy(0.1))


def test_promtool_that_does_not_end_is_no_fault_of_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.yaml").write_text("groups: []\n")
    monkeypatch.setattr("shutil.which", lambda _: "promtool")
    monkeypatch.setattr("labctl.runtimes.processes.run_short", lambda *_, **__: None)
    with lab_error("machine-busy", kind=TooBusy):
        promtool.first_firings(tmp_path / "rules.yaml", [], 1, 0, 1)


def test_promtool_that_does_not_end_in_its_container_is_no_fault_either_and_the_container_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def not_yet(timeout: float) -> dict[str, int]:
        assert timeout > 0, "the engine's client refuses another"
        raise requests.exceptions.ReadTimeout

    container = SimpleNamespace(
        start=lambda: calls.append("start"), wait=not_yet, logs=lambda: b"", remove=lambda: calls.append("remove")
    )
    made = SimpleNamespace(create=lambda image, words, **options: container)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(images, "exists", lambda image: True)
    monkeypatch.setattr(docker_engine, "engine", lambda: SimpleNamespace(containers=made))
    monkeypatch.setattr(promtool, "SECONDS", 0.0)
    (tmp_path / "rules.yaml").write_text("groups: []\n")
    with lab_error("machine-busy", kind=TooBusy):
        promtool.first_firings(tmp_path / "rules.yaml", [], 1, 0, 1)
    assert calls == ["start", "remove"]


def test_a_function_may_print_and_its_result_comes_back(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(a, b):\n    print('thinking')\n    return [a + b, {'n': b}]\n")
    assert sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1, 2], Patience(5)) == [3, {"n": 2}]


def test_a_function_that_returns_is_not_waited_for_because_of_a_child_that_it_left_behind(tmp_path: Path) -> None:
    """The child has a session of its own and holds the pipes."""
    left = tmp_path / "left"
    (tmp_path / "answer.py").write_text(
        "import os, signal\n"
        "def f(path):\n"
        "    ready, told = os.pipe()\n"
        "    if not (child := os.fork()):\n"
        "        os.setsid()\n"
        "        os.write(told, b'x')\n"
        "        signal.pause()\n"
        "    os.read(ready, 1)\n"
        "    open(path, 'w').write(str(child))\n"
        "    return 7\n"
    )
    try:
        assert sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [str(left)], Patience(60)) == 7
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


def test_of_a_function_that_prints_without_an_end_a_bounded_part_is_kept(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text(
        "def f(n):\n    for _ in range(n): print('x' * 2**20)\n    raise KeyError('last')\n"
    )
    with lab_error("answer-failed", "last"):
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [64], Patience(60))
    argv = [sys.executable, "-c", "import sys\nfor _ in range(64): sys.stdout.write('x' * 2**20)\nprint('last')"]
    ended = processes.run_short(argv, tmp_path, 60)
    assert ended and len(ended.out) == processes.MOST_OUTPUT and ended.out.endswith("last\n")


def test_a_result_that_is_nested_too_deeply_is_the_functions_fault(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("import os\ndef f(x):\n    os.write(1, b'[' * 200_000)\n    os._exit(0)\n")
    with lab_error("answer-no-json"):
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1], Patience(60))


def test_a_command_that_reads_nothing_of_what_it_is_given_ends_as_it_does(tmp_path: Path) -> None:
    ended = processes.run_short([sys.executable, "-c", "print(1)"], tmp_path, 60, "x" * 2**20)
    assert ended == (0, "1\n", "")
