"""labctl explain: why a request waited, step by step, and where two runs of the same requests part."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from counting_engine import CountingEngine
from lab_errors import lab_error
from model_cases import ENGINE, Case, answered, ids, request

from labctl.cli.explain import explain_command
from labctl.pages.live import story
from labsched.kv_budget import KVBudget
from labsched.policy import Policy
from labsched.request import Request
from labsched.scheduler import Scheduler

REQUESTS = (("a", 3, 4), ("b", 2, 4), ("c", 2, 2))  # names, tokens of the prompt, and of the answer


def run(
    folder: Path,
    policy: Policy = Policy.MAX_UTILIZATION,
    phase: str = "load",
    blocks: int = 5,
    requests: Sequence[tuple[str, int, int]] = REQUESTS,
    names: str = "",
) -> Path:
    """A run's folder with the step log of requests on the counting engine, as the recorder would write it."""
    scheduler = Scheduler(CountingEngine(step_tokens=8), KVBudget(blocks, 2), policy, 2, False)
    for name, prompt, limit in requests:
        scheduler.submit(Request(f"{names}{name}", [0] * prompt, limit))
    lines: list[dict[str, Any]] = []
    while not scheduler.idle:
        step = scheduler.step()
        n, of = len(lines) + 1, {"v": 2, "model": "engine", "instance": "0", "kind": "step", "slots": 2}
        step.ended = {request.name: request.why for request in step.finished}
        of |= {**step.logged(), "n": n, "t": n / 100, "dur": 0.01, "batch": step.batch}
        lines.append(of)
    folder.mkdir(exist_ok=True)
    (folder / f"steps-{phase}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def explain(*words: str | Path) -> str:
    done = CliRunner().invoke(
        explain_command, [str(word) for word in words], catch_exceptions=False, env={"COLUMNS": "80"}
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_why_a_request_waited_is_told_step_by_step_with_the_numbers_of_each_refusal(tmp_path: Path) -> None:
    shown = explain(run(tmp_path / "run"), "b")
    assert shown.splitlines() == [
        "B (id b) in engine, phase load: waited 1 step, 0.010 s; preempted 1 time",
        "",
        "step  seconds  it         reason or tokens",
        "----  -------  ---------  ----------------------------------------------",
        "   1    0.010  joins      2 computed, 1 new",
        "   2    0.010  decode     1 computed, 1 new",
        "   3    0.010  preempted  the batch would hold 6 blocks of 5",
        "   4    0.010  waits      no KV block: needs 3, 4 used, 1 reserved, of 5",
        "   5    0.010  joins      4 computed, 1 new",
        "   6    0.010  decode     1 computed, 1 new",
        "   6    0.010  ends       length",
    ]


def test_a_request_behind_the_first_of_the_queue_is_told_which_one_that_is(tmp_path: Path) -> None:
    shown = explain(run(tmp_path / "run"), "c")
    assert " 1-2    0.020  waits   no slot: 2 of 2 are taken" in shown
    assert " 3-4    0.020  waits   2nd in the queue, behind B: no KV block" in shown


def test_a_request_is_also_known_by_the_name_that_its_client_gave_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", names="41700")
    lines = [{"phase": "load", "label": f"question {name}", "id": f"41700{name}"} for name, *_ in REQUESTS]
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert explain(folder, "question b").startswith("B (id 41700b, question b) in engine, phase load: waited 1 step")


def test_a_request_to_the_openai_api_is_also_known_by_the_id_that_its_client_gave_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", names="41700:")
    assert explain(folder, "b").startswith("B (id 41700:b)")


def test_a_request_is_also_known_by_its_letter_in_order_of_arrival(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", names="41700")
    assert explain(folder, "C") == explain(folder, "c") == explain(folder, "41700c")
    sent = [{"phase": "load", "label": "", "id": f"41700{name}", "start": at} for at, name in enumerate("cab")]
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in sent))
    (told,) = json.loads(explain(folder, "A", "--json"))
    assert (told["request"], told["name"]) == ("41700c", "A")


def test_as_json_the_numbers_stand_by_themselves(tmp_path: Path) -> None:
    (told,) = json.loads(explain(run(tmp_path / "run"), "b", "--json"))
    (waits,) = [row for row in told["rows"] if row["what"] == "waits"]
    assert (told["request"], told["phase"], waits["first_step"], waits["last_step"]) == ("b", "load", 4, 4)
    assert waits["because"] == {"need": 3, "used": 4, "reserve": 1, "blocks": 5}


def test_a_request_or_a_log_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with lab_error("result-missing", "run"):
        explain(tmp_path / "run", "b")
    (tmp_path / "run").mkdir()
    with lab_error("step-log-missing", "run"):
        explain(tmp_path / "run", "b")
    with lab_error("request-unknown", "request z", "C (6)", "B (2)"):  # those that waited longest
        explain(run(tmp_path / "run"), "z")


def test_a_second_result_in_the_place_of_a_request_is_refused_as_one(tmp_path: Path) -> None:
    one, other = run(tmp_path / "one"), run(tmp_path / "other")
    for second in (other, other / "steps-load.jsonl"):
        done = CliRunner().invoke(explain_command, [str(one), str(second)])
        assert done.exit_code == 2 and "labctl explain --diff" in done.output
        assert second.name in done.output and "not a request" in done.output
    (tmp_path / "A").mkdir()  # a folder without a recording may have a request's name
    assert "A (id" in explain(one, "A")


def test_a_log_of_another_form_is_refused_and_warm_up_is_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    log = folder / "steps-load.jsonl"
    first, *rest = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps({**json.loads(first), "warm_up": True}), *rest]))
    assert "1    0.010  joins" not in explain(folder, "b")
    refused = {"waiting": ["b"], "queue": 1, "why": "no KV block", "because": {"need": 2}}
    for odd in ({"rows": 7}, refused, {"waiting": ["b"], "queue": 1, "why": []}):
        log.write_text(json.dumps({**json.loads(first), **odd}))
        with lab_error("step-log-invalid", "engine, phase load"):
            explain(folder, "b")


def test_the_first_step_at_which_two_runs_part_is_shown_with_both_reasons(tmp_path: Path) -> None:
    one, other = run(tmp_path / "a"), run(tmp_path / "b", Policy.GUARANTEED_NO_EVICT, names="8")
    shown = explain("--diff", one, other)
    assert "engine, phase load: 3 requests, 0 steps alike; the runs part at step 1" in shown
    lines = [line.rstrip() for line in shown.splitlines()]
    assert "batch            A B                       A" in lines
    assert any(
        line.startswith("request B") and "joins: 2 computed" in line and "waits: no KV" in line for line in lines
    )


def test_two_runs_that_never_part_say_so_and_one_that_is_over_has_parted(tmp_path: Path) -> None:
    one, other = run(tmp_path / "a"), run(tmp_path / "b", names="8")
    assert "all 8 steps of 3 requests are the same" in explain("--diff", one, other)
    log = other / "steps-load.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    (found,) = json.loads(explain("--diff", one, other, "--json"))
    assert (found["steps"], found["sides"][1]["step"]) == (7, 0)
    assert found["sides"][1]["reasons"] == {"C": "the run is over"}
    assert found["ids"]["C"] == ["c", "8c"]


def test_runs_whose_requests_all_have_the_same_label_are_compared(tmp_path: Path) -> None:
    folders = [run(tmp_path / "a"), run(tmp_path / "b", Policy.GUARANTEED_NO_EVICT, names="8")]
    for folder, prefix in zip(folders, ("", "8"), strict=True):
        lines = [{"phase": "load", "label": "question", "id": f"{prefix}{name}"} for name, *_ in REQUESTS]
        (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (lane,) = story.of_result(folders[0])
    assert lane.labels == {"a": "question", "b": "question#2", "c": "question#3"}
    assert "3 requests, 0 steps alike; the runs part at step 1" in explain("--diff", *folders)


def test_two_phases_of_one_run_are_compared_by_their_files(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", phase="small")
    run(folder, phase="large", blocks=50)
    shown = explain("--diff", folder / "steps-small.jsonl", folder / "steps-large.jsonl")
    assert "engine, phase small and engine, phase large: 3 requests, 2 steps" in shown
    assert "preempted: the batch would hold 6" in shown


def test_runs_of_other_requests_or_phases_are_refused(tmp_path: Path) -> None:
    one = run(tmp_path / "a")
    with lab_error("runs-with-other-requests"):
        explain("--diff", one, run(tmp_path / "b", requests=REQUESTS[:2]))
    run(one, phase="more")
    with lab_error("runs-without-common-phase"):
        explain("--diff", one, run(tmp_path / "c", phase="other"))


def test_the_log_that_the_engine_writes_is_explained_and_so_is_a_step_that_the_clock_holds(
    load: Callable[[Case], Any], tmp_path: Path
) -> None:
    model = load(ENGINE)
    answered(model, [request(ENGINE, {"request_output_len": ids(9)}) for _ in range(6)])
    model.finalize()
    held = {"model": "tensorrt_llm", "instance": "0", "state": "held", "ids": ["x"], "waiting": ["y"], "why": "no slot"}
    log = next(tmp_path.rglob("steps-*.jsonl"))
    held["instance"] = json.loads(log.read_text().splitlines()[0])["instance"]
    (lane,) = story.of_stack(log.parent, [held])
    waited = [row for name in lane.requests()[4:6] for row in story.story_of(lane, name) if row.what == "waits"]
    assert waited[0].words == "no slot: 4 of 4 are taken"
    assert [row.what for row in story.story_of(lane, "x")] == ["next step"]
    assert [row.what for row in story.story_of(lane, "y")] == ["waits"]
