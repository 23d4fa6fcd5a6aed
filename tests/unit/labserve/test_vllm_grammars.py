"""A grammar that a client sends is tried in a process that can be ended, and no other request waits for that."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_backend
import pytest

from labsched.request import Request
from labserve.driver import DriverThread
from labserve.guard import Guard
from labserve.inflight.engine_driver import TokenAnswers, read_request
from labserve.model_shape import ModelShape
from labserve.params import BadInput, Refusal
from labserve.vllm.engine import VllmRequest, VllmScheduler
from labserve.vllm.grammars import BACKEND, Grammars, backend_config, grammar_of

#: Programs in the place of the compiler: each reads the grammar, as the real one does.
READ = "import os, sys, time; grammar = sys.stdin.read(); "
FINE = READ + "open(os.environ['STARTS'], 'a').write('.')"
WRONG = READ + "print('no such type: ' + grammar, end='')"
ENDLESS = READ + "open(os.environ['STARTS'], 'w').write(str(os.getpid()))\nwhile True: pass"
ASLEEP = READ + "open(os.environ['STARTS'], 'w').write(str(os.getpid())); time.sleep(10_000)"
GREEDY = READ + "kept = [bytearray(2**20) for _ in range(2**20)]"
ABORTING = READ + "os.abort()"
BROKEN = READ + "import no_such_module"
WAIT_S = 60


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a process writes that it has started."""
    path = tmp_path / "starts"
    path.write_text("")
    monkeypatch.setenv("STARTS", str(path))
    return path


def grammars(program: str, **limits: Any) -> Grammars:
    return Grammars((sys.executable, "-c", program), **limits)


def tried(tries: Grammars, grammar: str = "a") -> Exception | None:
    error = tries.compile(grammar, lambda: grammar).exception(WAIT_S)
    assert error is None or isinstance(error, Exception)
    return error


def test_a_grammar_that_compiles_is_tried_once(starts: Path) -> None:
    tries = grammars(FINE)
    assert tried(tries, "a") is tried(tries, "a") is None
    assert starts.read_text() == "."
    assert tried(tries, "b") is None
    assert starts.read_text() == ".."


def test_a_grammar_that_is_wrong_is_refused_in_the_compilers_words() -> None:
    error = tried(grammars(WRONG), "foo")
    assert isinstance(error, BadInput) and str(error) == "structured_outputs: no such type: foo"


def test_a_grammar_that_never_compiles_is_refused_and_its_process_has_ended(starts: Path) -> None:
    tries = grammars(ENDLESS, cpu_s=1)
    error = tried(tries)
    assert isinstance(error, BadInput)
    assert str(error).startswith("structured_outputs: it is too complex: compiling it takes more than 1 s")
    ended = starts.read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended), 0)
    assert tried(tries) is error and starts.read_text() == ended, "the same schema again costs nothing"


@pytest.mark.parametrize("program", [GREEDY, ABORTING])
def test_a_grammar_that_takes_more_memory_is_refused(program: str) -> None:
    error = tried(grammars(program, memory=2**28))
    assert isinstance(error, BadInput) and "or 0.25 GiB of memory" in str(error)


def test_a_process_that_gets_nowhere_is_killed_and_the_grammar_is_not_blamed(starts: Path) -> None:
    tries = grammars(ASLEEP, deadline_s=1.0)
    error = tried(tries)
    assert isinstance(error, Refusal) and not isinstance(error, BadInput)
    first = starts.read_text()
    if first:  # on a busy machine it was killed before it began
        with pytest.raises(ProcessLookupError):
            os.kill(int(first), 0)
    assert tried(tries) is not error, "it is tried again"


def test_a_compiler_that_cannot_run_is_no_fault_of_the_grammar() -> None:
    error = tried(grammars(BROKEN))
    assert not isinstance(error, Refusal) and "no_such_module" in str(error)


def test_the_oldest_results_are_forgotten(starts: Path) -> None:
    tries = grammars(FINE, kept=2)
    for grammar in ("a", "b", "a", "c", "a", "b"):
        tried(tries, grammar)
    assert len(starts.read_text()) == 4, "b was the oldest when c came"


def test_a_grammar_that_finds_too_many_waiting_is_refused_at_once() -> None:
    tries, going_on = grammars(READ, most_waiting=1), threading.Event()
    waiting = tries.compile("a", lambda: str(going_on.wait(WAIT_S)))
    with pytest.raises(Refusal, match="maximum queue size"):
        tries.compile("b", lambda: "b")
    assert tries.compile("a", lambda: "a") is waiting
    going_on.set()
    assert waiting.exception(WAIT_S) is None


def test_what_cannot_be_read_is_refused_by_name() -> None:
    def unreadable() -> str:
        raise KeyError("triggers")

    error = Grammars().compile("a", unreadable).exception(WAIT_S)
    assert isinstance(error, BadInput) and error.name == "structured_outputs"


def test_the_real_compiler_ends_on_the_schema_that_it_never_finishes() -> None:
    """Skipped without llguidance, which is a part of vLLM's environment."""
    llguidance = pytest.importorskip("llguidance")

    def real(schema: object) -> Exception | None:
        text = json.dumps(schema)
        return tries.compile(text, lambda: llguidance.LLMatcher.grammar_from_json_schema(text)).exception(WAIT_S)  # type: ignore[return-value]

    tries = Grammars()
    endless = {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(20, 40)]}
    assert "it is too complex" in str(real(endless))
    assert real({"type": "object", "properties": {"a": {"type": "integer"}}}) is None
    assert "foo" in str(real({"type": "foo"}))


def test_a_grammar_is_made_as_vllm_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = SimpleNamespace(serialize_guidance_grammar=lambda *given: f"{given}")
    request: Any = SimpleNamespace(get_structured_output_key=lambda params: ("json", params.json))
    monkeypatch.setitem(sys.modules, "vllm.v1.structured_output.backend_guidance", backend)
    monkeypatch.setitem(sys.modules, "vllm.v1.structured_output.request", request)
    config = SimpleNamespace(disable_any_whitespace=True, disable_additional_properties=False)
    name, serialized = grammar_of(SimpleNamespace(json="{}"), config)
    assert name == "json {}" and serialized() == "('json', '{}', True, False)"
    with pytest.raises(BadInput, match="at most 65,536 characters"):
        grammar_of(SimpleNamespace(json="x" * 65_537), config)


def test_another_backend_which_would_compile_without_a_limit_is_refused() -> None:
    assert backend_config({}) == backend_config({"backend": "auto"}) == {"backend": BACKEND}
    assert backend_config({"disable_any_whitespace": True})["disable_any_whitespace"]
    with pytest.raises(ValueError, match="structured_outputs_config: 'xgrammar' would compile"):
        backend_config({"backend": "xgrammar"})


# -- in front of vLLM's scheduler --------------------------------------------------------------------------------------

SCHEMA = json.dumps({"structured_outputs": json.dumps({"json": {"type": "integer"}})})


class Scheduler(VllmScheduler):
    """`VllmScheduler` without vLLM: what was submitted, and the results that requests wait for."""

    static, idle, patience_s = False, False, float("inf")

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.result: Future[None] = Future()

    running = waiting = property(lambda self: [])

    def compile(self, request: VllmRequest) -> Future[None] | None:
        if request.schema is not None:
            request.grammar = self.result
        return request.grammar

    def submit(self, request: Request) -> None:
        assert isinstance(request, VllmRequest)
        if request.grammar:
            request.grammar.result(0)
        self.submitted.append(request.id)

    def abandon(self, error: Exception) -> list[Request]:
        return []


class Noted:
    """In the place of a recorder: when Triton handed over each request that has come."""

    def __init__(self) -> None:
        self.put_at: dict[str, float] = {}
        self.log = SimpleNamespace(watch=lambda *_: None)

    def arrived(self, request: Request, put: float) -> None:
        self.put_at[request.id] = put

    def gave_up(self) -> None: ...
    def settle(self) -> None: ...


class Desk(DriverThread):
    """The driver of `tensorrt_llm` before that scheduler, without its thread."""

    def __init__(self) -> None:
        inputs = [{"name": "input_ids", "data_type": "TYPE_INT32", "dims": ["-1"]}]
        guard = Guard({"model_name": "tensorrt_llm", "model_config": json.dumps({"input": inputs})})
        scheduler, recorder = Scheduler(), Noted()
        setup: Any = SimpleNamespace(scheduler=scheduler, shape=ModelShape(100, 64, 8), log_probs=None)
        read = partial(read_request, setup=setup, guard=guard)
        super().__init__(guard, scheduler, TokenAnswers(True), recorder, read)  # type: ignore[arg-type]
        self.put_at = recorder.put_at

    def ask(self, id: str, parameters: str = "", **inputs: Any) -> fake_backend.Request:
        given = {"input_ids": [[1, 2]], "input_lengths": [[2]], "request_output_len": [[3]], **inputs}
        source = fake_backend.Request(given, parameters, id=id)
        self.put([source])
        assert self.receive(wait=True)
        return source


def test_others_are_served_while_a_grammar_is_tried() -> None:
    desk = Desk()
    desk.ask("masked", SCHEMA)
    desk.ask("plain")
    assert desk.scheduler.submitted == ["plain"]
    threading.Thread(target=desk.scheduler.result.set_result, args=(None,)).start()  # as from the pool
    assert desk.receive(wait=True)
    assert desk.scheduler.submitted == ["plain", "masked"]
    assert desk.put_at["masked"] < desk.put_at["plain"], "the moment at which Triton handed it over"
    desk.ask("again", SCHEMA)
    assert desk.scheduler.submitted[-1] == "again", "a grammar that is known waits for nothing"


def test_a_grammar_that_fails_its_trial_is_an_error_of_its_request_alone() -> None:
    desk = Desk()
    source = desk.ask("masked", SCHEMA)
    desk.scheduler.result.set_exception(BadInput("structured_outputs", "it is too complex"))
    assert desk.receive(wait=True)
    assert source.final and source.error == "structured_outputs: it is too complex"
    assert not desk.scheduler.submitted and not desk.put_at


def stop(desk: Desk, source: fake_backend.Request) -> None:
    assert desk.ask("masked", stop=[[True]]).error == ""


def give_up(desk: Desk, source: fake_backend.Request) -> None:
    desk.give_up(Refusal("the model is being unloaded"))


@pytest.mark.parametrize("end", [stop, give_up])
def test_a_request_that_ends_while_its_grammar_is_tried_is_answered_once_and_not_computed(
    end: Callable[[Desk, fake_backend.Request], None],
) -> None:
    desk = Desk()
    source = desk.ask("masked", SCHEMA)
    end(desk, source)
    assert source.final and source.error
    desk.scheduler.result.set_result(None)
    assert desk.receive(wait=True)
    assert desk.scheduler.submitted == []


def test_a_broken_model_answers_a_request_whose_grammar_is_tried_once() -> None:
    desk = Desk()
    source = desk.ask("masked", SCHEMA)
    desk.scheduler.result.set_result(None)  # it is in the queue again
    desk.scheduler.patience_s = None  # the loop fails with the next look at the queue
    desk.serve()
    assert source.final
