"""The live page's other policy: it is the replay of `labctl predict`, and parts where `labctl explain --diff` says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lab_errors import lab_error
from recordings import SETTINGS, cost, some_requests, written

from labctl.cli.pages import watch_command
from labctl.pages.live import whatif
from labctl.pages.live.lines import Instance
from labctl.pages.live.parting import find_parting
from labctl.pages.live.story import InstanceSteps, LaneKey
from labctl.pages.live.whatif import WhatIf
from labkit.evidence.names import LetterNames
from labsched.log.steplog import parse_any_line
from labsched.replay import player, recording
from labsched.replay.recording import Arrival, Recording
from labsched.step import Step

Line = Mapping[str, Any]
POLICIES = [
    {"scheduling": "shortest_first"},
    {"max_num_sequences": "2"},
    {"gpt_model_type": "V1"},
    {"batch_scheduler_policy": "max_utilization", "max_num_tokens": "32"},
    {"enable_kv_cache_reuse": "true", "scheduling": "fair"},
]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """These judge what is computed; how much processor time is spent at once does not matter."""
    monkeypatch.setattr(whatif, "AT_ONCE_S", 60.0)
    monkeypatch.setattr(whatif, "SPARE_S", 60.0)


def log_of(folder: Path, arrivals: list[Arrival]) -> Path:
    """The step log of a server that served these requests: it takes new ones between two steps."""
    folder.mkdir(exist_ok=True)
    rows = player.replay(Recording(SETTINGS, arrivals), SETTINGS, cost).steps

    def received(one: Arrival) -> Arrival:
        """As the server takes it: between two steps."""
        over = sum(row.over < one.at for row in rows)
        if rows[over].began < one.at:
            return replace(one, at=rows[over].over, after=over + 1)
        return replace(one, after=over)

    log = written(folder, Recording(SETTINGS, [received(one) for one in arrivals], rows))
    return log.rename(folder / "steps-tensorrt_llm-0.jsonl")


def lines_of(log: Path) -> Iterator[Line]:
    return (line for text in log.read_bytes().splitlines() if (line := parse_any_line(text)))


def followed(log: Path, policy: Mapping[str, str], lines: list[Line] | None = None) -> tuple[WhatIf, list[Line]]:
    """All steps of the other policy, computed while the log grows by a line at a time."""
    what_if = WhatIf("inflight-batching", log.parent, policy)
    return what_if, [step for line in lines or lines_of(log) for step in what_if.feed([line])[0]]


def decided(steps: Sequence[Line]) -> list[dict[str, Any]]:
    return [Step.from_json(step).decides for step in steps]


def predicted(log: Path, policy: Mapping[str, str]) -> list[dict[str, Any]]:
    found = recording.read_recording(log)
    rows = player.replay(found, player.change_settings(found.settings, dict(policy))).steps
    return [row.decides for row in rows]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_steps_are_those_of_a_replay_of_the_whole_recording(policy: dict[str, str], tmp_path: Path) -> None:
    log = log_of(tmp_path, some_requests())
    assert decided(followed(log, policy)[1]) == predicted(log, policy)


def test_the_servers_own_policy_never_parts_from_it(tmp_path: Path) -> None:
    what_if, steps = followed(log_of(tmp_path, some_requests()), {"scheduling": "fcfs"})
    assert steps and what_if.events[-1]["words"] == "no difference yet"


@pytest.mark.parametrize("policy", POLICIES[:4], ids=str)
def test_the_first_difference_and_its_reasons_are_those_of_explain_diff(policy: dict[str, str], tmp_path: Path) -> None:
    log = log_of(tmp_path, some_requests())
    what_if, steps = followed(log, policy)
    sides = []
    for lines in ([line for line in lines_of(log) if "ids" in line], steps):
        instance, names = Instance(), LetterNames()
        names.update({str(n): str(n) for n in range(30)})  # as the event has them
        sides.append(
            InstanceSteps(LaneKey("", "", "engine", "0"), [instance.whole(line) for line in lines], dict(names), names)
        )
    wanted = find_parting(*sides).sides
    event = what_if.events[-1]
    assert wanted and event["at"] == [wanted[0].step, wanted[1].step]
    named = list(wanted[0].reasons)[: whatif.NAMED]
    assert event["why"] == [[name, wanted[0].reasons[name], wanted[1].reasons[name]] for name in named]


def test_nothing_is_replayed_before_the_length_of_an_answer_is_known(tmp_path: Path) -> None:
    log = log_of(tmp_path, some_requests())
    lines = list(lines_of(log))
    first = next(n for n, line in enumerate(lines) if line["kind"] == "request" and line["came"] == 1)
    assert followed(log, POLICIES[0], lines[:first])[1] == []
    assert followed(log, POLICIES[0], lines)[1]


def test_a_request_that_was_cancelled_leaves_the_other_policy_too(tmp_path: Path) -> None:
    first, *others = some_requests()
    gone = replace(first, limit=400, made=10, why="cancelled", left_at=0.1)
    log = log_of(tmp_path, [gone, *others])
    lines = [dict(line) for line in lines_of(log)]
    steps = [line for line in lines if line["kind"] == "step"]
    left = max(n for n, line in enumerate(steps, 1) if gone.name in line["ids"])
    record = {**next(line for line in lines if line["kind"] == "request"), "name": gone.name, "came": 1, "made": 10}
    record |= {"arrived": 100.0, "after": 0, "limit": 400, "prompt": gone.prompt, "why": "cancelled", "left": left}
    record |= {"tenant": gone.tenant, "priority": gone.priority, "t": steps[left]["t"] - steps[left]["dur"]}
    steps[left]["ended"] = {**steps[left].get("ended", {}), gone.name: "cancelled"}
    lines.insert(lines.index(steps[left]), record)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    what_if, computed = followed(log, {"max_num_sequences": "2"})
    wanted = predicted(log, {"max_num_sequences": "2"})
    without = [  # a replay's rows do not have it
        {**step, "ended": {name: why for name, why in step.get("ended", {}).items() if name != gone.name}}
        for step in computed
    ]
    assert decided(without) == wanted and len(what_if.events) == 2


def test_a_run_that_is_over_has_no_other_policy_to_watch(tmp_path: Path) -> None:
    log_of(tmp_path / "run", some_requests())
    done = CliRunner().invoke(watch_command, [str(tmp_path / "run"), "--what-if", "scheduling=fair"])
    assert done.exit_code == 2 and "labctl predict" in done.output


def twice() -> tuple[list[Arrival], list[Arrival]]:
    """Requests, and the same again, long after the last of them has ended."""
    some = some_requests()
    return some, [replace(one, name=f"again {one.name}", at=one.at + 100.0) for one in some]


def test_while_the_server_is_idle_the_other_ends_what_it_has_and_both_begin_together(tmp_path: Path) -> None:
    some, again = twice()
    log, alone = log_of(tmp_path / "both", [*some, *again]), log_of(tmp_path / "alone", some)
    what_if, steps = followed(log, {"max_num_sequences": "2"})
    one = decided(followed(alone, {"max_num_sequences": "2"})[1])
    both = json.loads(json.dumps(decided(steps)).replace("again ", ""))
    assert both == [*one, *one]
    assert [bool(event.get("at")) for event in what_if.events] == [False, True, True]


def test_a_page_that_comes_late_begins_where_the_server_was_idle(tmp_path: Path) -> None:
    some, again = twice()
    log = log_of(tmp_path, [*some, *again])
    late = [line for line in lines_of(log) if line["t"] > 100.05]
    names = {name for step in followed(log, POLICIES[0], late)[1] for name in step["ids"]}
    assert names == {one.name for one in again}


def test_what_one_look_has_no_time_for_is_computed_at_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "AT_ONCE_S", 0.0)
    log = log_of(tmp_path, some_requests())
    what_if = WhatIf("inflight-batching", tmp_path, POLICIES[0])
    steps, _ = what_if.feed(lines_of(log))
    assert len(steps) == 1
    while more := what_if.feed([])[0]:
        steps += more
    assert decided(steps) == predicted(log, POLICIES[0])


@pytest.mark.parametrize(
    ("words", "own", "policy", "code", "said"),
    [
        ({"engine": "vllm"}, "", {"scheduling": "fair"}, "settings-unpredictable", "'fair'"),
        ({}, "scheduler.py", {"scheduling": "fair"}, "scheduler-not-recorded", "scheduler.py"),
        ({}, "", {"model": "other"}, "setting-unpredictable", "model"),
    ],
    ids=str,
)
def test_what_cannot_be_replayed_is_refused_by_name(
    words: dict[str, str], own: str, policy: dict[str, str], code: str, said: str, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, words={**SETTINGS.words, **words}, own=own)
    written(tmp_path, Recording(settings, [])).rename(tmp_path / "steps-tensorrt_llm-0.jsonl")
    with lab_error(code, said):
        WhatIf("inflight-batching", tmp_path, policy)


def test_a_stack_without_such_a_scheduler_is_refused_by_name(tmp_path: Path) -> None:
    with lab_error("what-if-unsupported", "iterative"):
        WhatIf("iterative", tmp_path, {"scheduling": "fair"})


def test_a_request_that_the_other_policy_would_refuse_ends_the_strip_and_says_so(tmp_path: Path) -> None:
    policy = {"max_tokens_in_paged_kv_cache": "64"}
    what_if, _ = followed(log_of(tmp_path, some_requests()), policy)
    assert "it ends here: request" in what_if.events[-1]["words"] and "KV cache" in what_if.events[-1]["words"]
