"""The observer around a learner's model: what the model does is counted, whatever the model says of itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import labserve_tiny
import numpy as np
import pytest
from exercise_cases import EXERCISES
from fake_backend import RESCHEDULE, START, Request

from labctl.learn import faults
from labctl.learn.attempts import find_attempt
from labctl.learn.exercise import find_exercise
from labctl.stack.faults import stuck_sentences
from labkit.evidence import steplog
from labsched.step import Step
from labserve.observe import exercise as module
from labserve.observe.exercise import DROPPED, FINISHED, observed_model

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(labserve_tiny.make(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def model(folder: str, tmp_path: Path) -> Iterator[Callable[[str | Path], Any]]:
    """The learner's model of a file or a text, observed; its run folder is ``tmp_path / "run"``."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    loaded: list[Any] = []

    def load(source: str | Path, decoupled: bool = True) -> Any:
        path = tmp_path / "learner.py"
        path.write_text(source if isinstance(source, str) else source.read_text())
        words = {"model_path": folder, "run_dir": str(run_dir), "slots": "4", "threads": "1"}
        config = {
            "parameters": {name: {"string_value": word} for name, word in words.items()},
            "model_transaction_policy": {"decoupled": decoupled},
            "input": [],
            "sequence_batching": {},
        }
        made = observed_model(path)()
        made.initialize(
            {
                "model_name": "m",
                "model_config": json.dumps(config),
                "model_instance_kind": "CPU",
                "model_instance_name": "m_0_0",
            }
        )
        loaded.append(made)
        return made

    yield load
    for made in loaded:
        made.finalize()


def request(id: int, tokens: int = 3) -> Request:
    asked = json.dumps({"max_tokens": tokens, "ignore_eos": True})
    return Request({"text_input": np.array([[b"the fox"]], dtype=object)}, asked, correlation=id, flags=START)


def serve(model: Any, requests: Sequence[Request], turns: int = 200) -> list[list[int]]:
    """Hand over, as Triton does, what was given back; which requests the learner's model got in each turn."""
    shown: list[list[int]] = []
    inner = model.model.execute

    def execute(handed: Sequence[Any]) -> None:
        shown[-1] = [one.correlation_id() for one in handed]
        inner(handed)

    model.model.execute = execute
    here = list(requests)
    while here and len(shown) < turns:
        shown.append([])
        model.execute(here)
        here = [one for one in here if one.flags_out & RESCHEDULE]
        for one in here:
            one._flags = one.flags_out = 0
    return shown


def answer(id: str, name: str) -> str:
    return find_attempt(find_exercise(EXERCISES, id), name).files["model.py"]


def steps(tmp_path: Path) -> list[Step]:
    return steplog.read_step_log(tmp_path / "run")


def noted(tmp_path: Path) -> list[faults.ObservedFault]:
    return faults.read_faults(tmp_path / "run", 0.0)


def test_what_a_model_does_is_counted_without_a_word_of_its_own(model: Any, tmp_path: Path) -> None:
    asked = [request(1, 5), request(2, 3)]
    serve(model(answer("02b", "solution")), asked)
    found = steps(tmp_path)
    assert [step.made for step in found] == [[1, 1]] * 3 + [[1]] * 2
    assert [step.prefill for step in found] == [2, 0, 0, 0, 0]
    assert [step.more["slots_used"] for step in found] == [2, 2, 1, 1, 0]
    assert [step.more["passes"] for step in found] == [1] * 5
    assert found[-1].more["kept"] == 0 and all(one.final for one in asked) and not noted(tmp_path)


def test_a_prompt_counts_in_the_execution_that_computes_it_whenever_its_first_token_is_sent(
    model: Any, tmp_path: Path
) -> None:
    serve(model(answer("02c", "wrong/answers_later")), [request(id) for id in range(1, 5)])
    found = steps(tmp_path)
    assert max(step.prefill or 0 for step in found) == 1
    assert [step.more["prompts"] for step in found if step.more["prompts"]] == [4]


def test_the_learners_own_step_log_is_not_written(model: Any, tmp_path: Path) -> None:
    """A log that a model forges is no evidence."""
    source = answer("02b", "solution")
    forged = source.replace(
        "    def execute(self, requests):",
        """\
        from labserve.observe.watched_log import WatchedLog
        from labserve.triton import parameter
        self.log = WatchedLog(parameter(args, "run_dir"), args["model_name"], "0_0")

    def execute(self, requests):
        self.log.write(0.0, [1, 2, 3], slots_used=0)""",
        1,
    )
    serve(model(forged), [request(1, 2)])
    assert [step.batch for step in steps(tmp_path)] == [1, 1]


@pytest.mark.parametrize(("name", "kept", "slots"), [("keeps_the_sequence", 2, 0), ("keeps_the_slot", 0, 2)])
def test_what_is_left_of_finished_requests_is_seen_wherever_it_is_kept(
    model: Any, tmp_path: Path, name: str, kept: int, slots: int
) -> None:
    serve(model(answer("02b", f"wrong/{name}")), [request(1), request(2)])
    last = steps(tmp_path)[-1].more
    assert (last["kept"], last["slots_used"]) == (kept, slots)


@pytest.mark.parametrize("where", ["self.mine[id] = text", "TritonPythonModel.ours[id] = text", "EVERY[id] = text"])
def test_things_kept_under_a_name_of_ones_own_are_counted(model: Any, tmp_path: Path, where: str) -> None:
    source = f"""
EVERY = {{}}

class TritonPythonModel:
    ours = {{}}

    def initialize(self, args):
        self.mine = {{}}

    def execute(self, requests):
        for request in requests:
            id, text = request.correlation_id(), "text"
            {where}
        return [None for _ in requests]
"""
    served = model(source, decoupled=False)
    for id in (1, 2, 3):
        served.execute([request(id)])
    assert [step.more["kept"] for step in steps(tmp_path)] == [1, 2, 3]


def test_a_finished_request_that_is_given_back_is_a_sentence_and_never_reaches_triton(
    model: Any, tmp_path: Path
) -> None:
    """Triton 2.51 ends with SIGSEGV, or calls the model for a request that it knows no more."""
    asked = [request(1), request(2, 2)]
    serve(model(answer("02a", "wrong/gives_everybody_back")), asked)
    assert all(one.final and not one.error and not one.flags_out for one in asked)
    assert {fault.words for fault in noted(tmp_path)} == {FINISHED}


def test_a_request_that_is_neither_answered_nor_given_back_gets_an_error_at_once(model: Any, tmp_path: Path) -> None:
    asked = request(1)
    serve(model(answer("02a", "wrong/no_reschedule")), [asked])
    assert asked.final and asked.error == DROPPED
    assert [fault.words for fault in noted(tmp_path)] == [DROPPED]


@pytest.mark.parametrize("after", [False, True])
def test_fault_25_an_exception_in_execute_is_noted_with_its_line_and_everybody_is_answered(
    model: Any, tmp_path: Path, after: bool
) -> None:
    """Before the answers are sent and after them, when every client already has what it wanted."""
    source = answer("02b", "solution")
    line = "        self.one_step(batch)\n"
    guilty = "        {}['b']\n"
    asked = [request(1, 1), request(2, 3)]
    serve(model(source.replace(line, line + guilty if after else guilty + line)), asked)
    [fault] = noted(tmp_path)
    number = source[: source.index(line)].count("\n") + (2 if after else 1)
    assert (fault.words, fault.line, fault.exception) == ("KeyError: 'b'", number, True)
    assert all(one.final for one in asked), "a client waits for ever"
    assert asked[1].error and bool(asked[0].error) != after
    assert (
        faults.headline([fault], find_exercise(EXERCISES, "02b"))
        == f"exercises/02b/model.py, line {number}: KeyError: 'b'"
    )


def test_requests_come_in_orders_that_triton_may_choose_and_the_solution_holds(model: Any, tmp_path: Path) -> None:
    asked = [request(id, 6) for id in (1, 2, 3, 4)]
    shown = serve(model(answer("02c", "solution")), asked)
    assert shown[0] == [1, 2, 3, 4] and all(one.final for one in asked) and not noted(tmp_path)
    assert any(turn != sorted(turn) for turn in shown), "the order never changed"
    assert any(turn and 2 not in turn and 3 in turn for turn in shown[:4]), "the next newcomer was never late"
    found = steps(tmp_path)
    assert max(step.prefill or 0 for step in found) == 1
    assert not sum(step.more["left_out"] + step.more["overtaken"] + step.more["held_up"] for step in found)


@pytest.mark.parametrize(
    ("name", "field", "least"),
    [
        ("one_after_the_other", "prefill", 2),
        ("newcomer_alone", "left_out", 1),
        ("first_of_the_batch", "overtaken", 1),
        ("does_not_wait", "overtaken", 1),
        ("last_come_first_served", "overtaken", 1),
        ("joins_no_running_one", "held_up", 1),
    ],
)
def test_every_known_way_to_admit_wrongly_is_seen_with_any_timing(
    model: Any, tmp_path: Path, name: str, field: str, least: int
) -> None:
    asked = [request(id, 6) for id in (1, 2, 3, 4)]
    serve(model(answer("02c", f"wrong/{name}")), asked)
    assert max(step.to_json()[field] for step in steps(tmp_path)) >= least
    assert all(one.final for one in asked)


def test_a_loop_while_a_model_is_loaded_is_named_with_its_line(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton waits for it without a word, and loads nothing else meanwhile."""
    monkeypatch.setattr(module, "LOAD_S", 0.1)
    go_on = tmp_path / "go-on"
    source = f"""import time
from pathlib import Path

while not Path({str(go_on)!r}).exists():
    time.sleep(0.01)


class TritonPythonModel:
    def execute(self, requests):
        pass
"""
    loading = threading.Thread(target=model, args=(source,))
    loading.start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (said := stuck_sentences(tmp_path / "run")):
            assert time.monotonic() < deadline
    finally:
        go_on.touch()
        loading.join()
    assert any(f"{tmp_path}/learner.py:{line}: is there a loop without an end?" in said[0] for line in (4, 5))
    assert stuck_sentences(tmp_path / "run") == [], "it is loaded"
