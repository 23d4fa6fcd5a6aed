"""Recordings whose truth is known by how they were made: which cause, who waits for whom, and who got nothing."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from explaining import in_both_ways, in_words
from lab_errors import lab_error
from recordings import SETTINGS, recorded, request, vllm_settings, written, written_by_vllm

from labctl.cli.explain import explain_command
from labsched.explain import causes, findings
from labsched.explain.explanation import Window
from labsched.explain.prefixes import prefix_use
from labsched.explain.result import explain_result
from labsched.log.settings import SchedulerSettings
from labsched.replay import answer, clients, figures, player, recording
from labsched.replay.player import ReplayResult, change_settings, replay
from labsched.replay.recording import Arrival, Recording, Sent
from labsched.step import NOT_RECORDED, Step
from labsched.vllm import files
from labsched.vllm.decision import NOT_READY
from labsched.vllm.recorder import Came, Notes


def in_80_columns(text: str) -> str:
    assert all(len(line) <= 80 or "/" in line for line in text.splitlines()), "a path is not broken"
    return text


def said(*words: str | Path) -> str:
    """What `labctl explain` prints on a terminal of 80 columns."""
    return in_80_columns(in_words(*words))


def sentences(*words: str | Path) -> list[str]:
    """The first of them is the line about the recording."""
    return said_and_sentences(*words)[1]


def said_and_sentences(*words: str | Path) -> tuple[str, list[str]]:
    text, document = in_both_ways(*words)
    found: list[str] = document["sentences"]
    assert " ".join(in_80_columns(text).split()).startswith(" ".join(found[:2]))
    return text, found


def chats(count: int, every_s: float, prompt: int, limit: int, **more: Any) -> list[Arrival]:
    return [replace(request(f"chat {n}", every_s * n, prompt, limit), **more) for n in range(count)]


def p99(made: Recording, among: Sequence[Arrival]) -> float:
    return float(figures.figures(made.steps, {a.name: a.at for a in among})["ttft_p99_ms"])


def nearest_p99(made: Recording, among: Sequence[Arrival]) -> float:
    """The time to the first token (ms) at rank 99 %, from the steps alone."""
    first = first_tokens(made)
    times = sorted(first[one.name] - one.at for one in among)
    return 1e3 * times[math.ceil(0.99 * len(times)) - 1]


def linear(row: Step) -> float:
    """A step's time: 8 ms, and 0.03 ms for each token."""
    return 8e-3 + 3e-5 * sum(row.tokens)


def test_no_threshold_is_named_that_no_prompt_reaches(tmp_path: Path) -> None:
    """Forty prompts of 40 tokens at once; the threshold would be a quarter of the budget of 2,048."""
    written_by_vllm(tmp_path, recorded(chats(40, 0.0, 40, 40), vllm_settings(), linear))
    document = json.loads(CliRunner().invoke(explain_command, [str(tmp_path), "--json"]).output)
    assert document["TTFT"]["largest"]["part"] == causes.PROMPTS and document["TTFT"]["change"] == {}


# -- what would help --------------------------------------------------------------------------------------------------


def as_ours(settings: SchedulerSettings) -> SchedulerSettings:
    return replace(settings, words={**settings.words, "engine": "openvino"})


def predicts(read: Recording) -> answer.Predictor:
    """As with vLLM's scheduler, in whose place stands ours: it also made these recordings."""

    def replayed(recording: Recording, settings: SchedulerSettings, *more: Any) -> ReplayResult:
        return replay(recording, as_ours(settings), *more)

    def changed(settings: SchedulerSettings, assignments: Mapping[str, str]) -> SchedulerSettings:
        made = change_settings(as_ours(settings), assignments)
        return replace(made, words={**made.words, "engine": "vllm"})

    return answer.Predictor.of(read, replayed=replayed, changed=changed)


def steep(row: Step) -> float:
    """A step's time: 4 ms, and 1 ms for each token, so that a token takes longer in a larger batch."""
    return 4e-3 + 1e-3 * sum(row.tokens)


def test_what_is_advised_for_vllm_was_replayed_and_does_what_really_running_it_does(tmp_path: Path) -> None:
    """A load that four slots do not keep up with, and eight do."""
    load = [replace(one, made=20 + n % 60, limit=20 + n % 60) for n, one in enumerate(chats(120, 0.085, 5, 80))]
    made = recorded(load, vllm_settings(slots=4), steep)
    written_by_vllm(tmp_path, made)
    told = explain_result(tmp_path, predicts=predicts)
    every = findings.everybody(told.told.requests)
    slots = {one.change["max_num_sequences"]: one for one in told.tried if "max_num_sequences" in one.change}
    really = {count: p99(recorded(load, vllm_settings(slots=int(count)), steep), load) for count in slots}
    for count, one in slots.items():
        assert one.p99("TTFT", every) == pytest.approx((p99(made, load), really[count]), rel=0.05)
    assert told.advice["TTFT"].change == {"max_num_sequences": min(really, key=lambda count: really[count])}
    assert slots["2"].helps("TPOT", every) and told.advice["TPOT"].change == {}, "one answer does not say both"
    said = " ".join(told.sentences())
    assert "max_num_seqs=16" in said and "max_num_seqs=2" not in said and "not tested" not in said


def test_that_nothing_helps_is_an_answer(tmp_path: Path) -> None:
    """One request after the other: their time is their own work."""
    written_by_vllm(tmp_path, recorded(chats(60, 2.0, 200, 20), vllm_settings(), linear))
    told = explain_result(tmp_path, predicts=predicts)
    assert told.tried and not any(advice.change for advice in told.advice.values())


# -- before the scheduler ---------------------------------------------------------------------------------------------


@functools.cache
def through_a_front_end(waited: float | None) -> Recording:
    """Five requests a second on 64 slots, each of which was that long in the front end; at most a few run at once."""
    before = waited or 0.0
    arrivals = chats(60, 0.2, 200, 50)
    arrivals = [replace(one, at=one.at + 1.0 - before, waited=waited) for one in arrivals]
    return recorded(arrivals, vllm_settings(), linear)


def test_time_before_the_scheduler_is_the_front_ends_and_no_setting_is_named(tmp_path: Path) -> None:
    made = through_a_front_end(0.4)
    assert not any(row.waiting for row in made.steps), "nobody ever waited for a slot"
    longest = max(row.over - row.began for row in made.steps)
    for one in causes.explain_requests(made):
        assert 1e3 * (0.4 - longest) <= one.ttft[causes.FRONT_END] <= 400.001
        assert causes.NO_SLOT not in one.ttft and NOT_RECORDED not in one.ttft
    written_by_vllm(tmp_path, made)
    _, first, *_ = sentences(tmp_path)
    assert causes.PARTS[causes.FRONT_END] in first and "--api-server-count" in first and "max_num" not in first


def test_a_request_that_came_during_a_step_was_in_the_front_end_until_that_step(tmp_path: Path) -> None:
    """By hand: a step from 0.00 to 0.10, one to 0.30, and the request from 0.05 on, which the scheduler had at 0.30."""
    first, second, third = (row(batch=["a"], began=b, over=o, phase="d") for b, o in ((0, 0.1), (0.1, 0.3), (0.3, 0.4)))
    third.ids, third.phase, third.tokens = ["a", "b"], "dp", [1, 10]
    third.made = [1, 1]
    arrivals = [request("a", 0.0, 1, 9), replace(request("b", 0.05, 10, 1), waited=0.2501)]
    found = causes.explain_requests(Recording(vllm_settings(), arrivals, [first, second, third]))
    ttft = {part: round(ms) for part, ms in found[1].ttft.items() if round(ms)}
    assert ttft == {causes.FRONT_END: 50, causes.IN_PROGRESS: 200, causes.PREFILL: 100}


def row(batch: list[str], began: float, over: float, phase: str = "", **more: Any) -> Step:
    """A step by hand; each request computes one token and makes one."""
    ones, phase = [1] * len(batch), phase or "d" * len(batch)
    fields: dict[str, Any] = {"tokens": ones, "made": list(ones), "kv_blocks_used": 1, **more}
    return Step(batch, began, over, phase=phase, **fields)


def test_a_recording_that_does_not_have_the_front_end_says_so_where_a_client_shows_the_time(tmp_path: Path) -> None:
    made = through_a_front_end(None)
    assert all(causes.FRONT_END not in one.ttft for one in causes.explain_requests(made))
    sent = {one.name: Sent(one.at - 0.4) for one in made.arrivals}
    for one in causes.explain_requests(made, sent):
        assert one.ttft[NOT_RECORDED] == pytest.approx(400)
    read = recording.read_recording(written_by_vllm(tmp_path, made))
    assert {arrival.waited for arrival in read.arrivals} == {None}


class Kept:
    """The events that would be written."""

    def __init__(self) -> None:
        self.open, self.events = True, list[Any]()

    def add(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


class Unknown:
    request_id = "a"


@pytest.mark.parametrize("arrival_time", [None, 0.0, 1e18])
def test_the_recorder_writes_no_time_in_the_front_end_that_vllm_does_not_say(arrival_time: float | None) -> None:
    """None: vLLM has no such field; the others are times of another clock."""
    kept: Any = Kept()
    one: Any = Unknown()
    if arrival_time is not None:
        one.arrival_time = arrival_time
    Notes(kept).came(one)
    (event,) = kept.events
    assert isinstance(event, Came) and event.waited is None and files.log.name


# -- no default reason ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waits", "part"),
    [
        ({"waiting": ["b"], "why": ["no KV block"]}, causes.NO_BLOCK),
        ({"waiting": ["b"], "why": []}, NOT_RECORDED),
        ({"waiting": ["x"], "why": ["no slot"]}, NOT_RECORDED),
        ({"waiting": ["x"], "why": "no slot", "queue": 2}, causes.NO_SLOT),
        ({"waiting": ["x"], "why": ["no slot"], "queue": 2}, NOT_RECORDED),
        ({}, NOT_RECORDED),
    ],
)
def test_a_request_waits_for_what_the_log_says_or_it_is_not_recorded(waits: dict[str, Any], part: str) -> None:
    rows = [row(["a"], 0.1 * n, 0.1 * n + 0.1, **waits) for n in range(5)]
    rows.append(row(["b"], 0.5, 0.6, "p", ended={"b": "length"}))
    found = causes.explain_requests(Recording(SETTINGS, [request("a", 0, 1, 9), request("b", 0.0, 1, 1)], rows))
    waited = {part: round(ms) for part, ms in found[1].ttft.items() if round(ms)}
    assert waited == {part: 500, causes.PREFILL: 100}


@pytest.mark.parametrize(
    ("why", "queue", "each", "behind"),
    [
        ("no slot", 2, ["no slot"] * 2, None),
        ("no slot", 3, ["no slot"] * 2, "no slot"),
        ("", 3, [NOT_RECORDED] * 2, NOT_RECORDED),
        (["no slot", "no prefix"], 2, ["no slot", "no prefix"], None),
        (["no slot"], 3, ["no slot", NOT_RECORDED], NOT_RECORDED),
    ],
)
def test_a_line_gives_no_reason_to_a_request_that_it_does_not_give_one(
    why: Any, queue: int, each: list[str], behind: str | None, tmp_path: Path
) -> None:
    path = written(tmp_path, recorded([request(str(n), 0.0, 20, 5) for n in range(6)]))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    waits = [line for line in lines if line.get("waiting")]
    for line in waits:
        line |= {"waiting": [*line["waiting"][:1], "6"], "why": why, "queue": queue}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    read = [one for one in recording.read_recording(path).steps if one.waiting]
    assert len(read) == len(waits) > 0
    assert all((one.whys, one.behind) == (each, behind) for one in read)


def test_of_a_few_steps_nobody_knows_what_others_prompts_took(tmp_path: Path) -> None:
    """Ten prompts at once on a device whose steps take 9 ms, whatever they compute: each would wait as long alone."""
    written_by_vllm(tmp_path, recorded([request(str(n), 0.0, 20, 10) for n in range(10)], vllm_settings(), flat))
    told = explain_result(tmp_path)
    assert len(told.told.recordings[0].steps) < 30
    first = told.found["TTFT"][0]
    assert first.part == NOT_RECORDED and first.culprit is None and not first.changes
    assert "10 steps are too few" in told.told.heading()


def flat(row: Step) -> float:
    return 9e-3


# -- time in which nothing is computed --------------------------------------------------------------------------------


def test_while_an_idle_server_computes_no_step_for_a_request_its_time_is_not_recorded(tmp_path: Path) -> None:
    """By hand: vLLM has each request for two seconds, as for a grammar, and no step; its prompt takes 50 ms."""
    rows, arrivals = list[Step](), list[Arrival]()
    for n in range(40):
        name, begins = str(n), 10.0 * n + 2.0
        rows.append(row([name], begins, begins + 0.05, "p", joined=[name]))
        rows.append(row([name], begins + 0.05, begins + 0.06, ended={name: "length"}))
        arrivals.append(request(name, 10.0 * n, 1, 2))
    for one in causes.explain_requests(Recording(vllm_settings(), arrivals, rows)):
        ttft = {part: round(ms) for part, ms in one.ttft.items() if round(ms)}
        assert ttft == {NOT_RECORDED: 2000, causes.PREFILL: 50}
    written_by_vllm(tmp_path, Recording(vllm_settings(), arrivals, rows))
    assert explain_result(tmp_path).found["TTFT"][0].part == NOT_RECORDED


def test_while_a_busy_server_stands_still_between_two_steps_the_time_of_all_is_not_recorded() -> None:
    """By hand: as while an adapter is loaded, which takes from 4.0 to 6.0. One request waits for its slot throughout;
    one comes to the scheduler meanwhile, and one to the front end, from which the scheduler had it at 6.0.
    """
    rows = [row(["a"], 0.1 * n, 0.1 * n + 0.1, waiting=["w"], why="no slot", busy=n > 0) for n in range(40)]
    rows.append(row(["a"], 6.0, 6.1, waiting=["w", "b", "c"], why="no slot", busy=True))
    rows.append(row(["w", "b", "c"], 6.1, 6.2, "ppp", joined=["w", "b", "c"], busy=True))
    arrivals = [request("a", 0.0, 1, 41), request("w", 0.0, 1, 1), request("b", 4.5, 1, 1)]
    arrivals.append(replace(request("c", 4.5, 1, 1), waited=1.4999))
    found = {one.name: one for one in causes.explain_requests(Recording(vllm_settings(), arrivals, rows))}
    assert found["a"].tpot[NOT_RECORDED] == pytest.approx(50), "two seconds in forty gaps"
    for name, seconds in (("w", 2.0), ("b", 1.5), ("c", 1.5)):
        assert found[name].ttft[NOT_RECORDED] == pytest.approx(1e3 * seconds, abs=0.2)
        assert found[name].ttft.get(causes.FRONT_END, 0.0) < 0.2
    assert round(found["w"].ttft[causes.NO_SLOT]) == 4100


# -- everybody counts -------------------------------------------------------------------------------------------------


def with_impatient_clients(patience_s: float) -> Recording:
    """200 requests on 8 slots; the client of every second one leaves after so long, whatever it got."""
    arrivals = [
        replace(one, why="cancelled", left_at=one.at + patience_s) if n % 2 else one
        for n, one in enumerate(chats(200, 0.022, 100, 40))
    ]
    made = recorded(arrivals, vllm_settings(slots=8), linear)
    tokens = dict.fromkeys((one.name for one in arrivals), 0)
    for one in made.steps:
        for name, count in zip(one.ids, one.made, strict=True):
            tokens[name] += count
    return replace(made, arrivals=[replace(one, made=tokens[one.name]) for one in arrivals])


def test_requests_that_left_without_a_token_are_the_first_sentence(tmp_path: Path) -> None:
    made = with_impatient_clients(0.5)
    lost = [one for one in made.arrivals if not one.made]
    assert 20 <= len(lost) <= 100, "the load is too light for this test"
    explained = {one.name: one for one in causes.explain_requests(made)}
    assert len(explained) == 200
    for one in lost:
        assert not explained[one.name].answered
        assert explained[one.name].whole("TTFT") == pytest.approx(500, abs=0.1)
        assert explained[one.name].ttft[causes.NO_SLOT] > 400
    written_by_vllm(tmp_path, made)
    heading, first, second, *_ = sentences(tmp_path)
    assert "200 requests" in heading
    assert first.startswith(f"{len(lost)} of 200 requests ({len(lost) / 200:.0%}) never got a token")
    assert second.startswith("p99 of TTFT of the others is")


def test_requests_whose_end_leaves_the_server_idle_count_and_their_tpot_ends_with_their_last_token(
    tmp_path: Path,
) -> None:
    """One at a time; the client of two in three leaves after its fifth token, 30 ms later, while nothing runs."""
    arrivals, rows = list[Arrival](), list[Step]()
    for n in range(30):
        at, slow = 10.0 * n, n % 3 != 0
        one = request(str(n), at, 10, 40 if slow else 5)
        times = [at + (2.0 if slow else 0.02), *(at + 2.1 + 0.1 * k for k in range(4))]
        begins = [at, *times[:-1]]
        for k, (began, over) in enumerate(zip(begins, times, strict=True)):
            ended = {one.name: "length"} if k == 4 and not slow else {}
            rows.append(row([one.name], began, over, "d" if k else "p", ended=ended, joined=[] if k else [one.name]))
        ends = replace(one, made=5)
        arrivals.append(replace(ends, why="cancelled", left_at=times[-1] + 0.03) if slow else ends)
    made = Recording(vllm_settings(), arrivals, rows)
    found = causes.explain_requests(made)
    assert len(found) == 30 and findings.at_percentile(found, "TTFT", 99).whole("TTFT") == pytest.approx(2000)
    for explained in found:
        gap = 100 if explained.arrival.cancelled else (2.1 + 0.3 - 0.02) / 4 * 1e3
        assert explained.whole("TPOT") == pytest.approx(gap), "nothing after the last token counts"
    read = causes.explain_requests(recording.read_recording(written_by_vllm(tmp_path, made)))
    assert [round(again.whole("TTFT")) for again in read] == [round(one.whole("TTFT")) for one in found]


def test_a_request_that_still_waits_at_the_end_of_a_recording_is_counted_and_not_replayed(tmp_path: Path) -> None:
    made = recorded(chats(12, 0.001, 20, 30), vllm_settings(slots=4), linear)
    cut = [one for one in made.steps if one.over < made.steps[40].over]
    begun = {name for one in cut for name in one.ids}
    path = written_by_vllm(tmp_path, replace(made, steps=cut))
    read = recording.read_recording(path)
    assert len(read.arrivals) == len(begun) < 12 and len(read.arrivals) + len(read.pending) == 12
    assert f"{12 - len(begun)} still waited at the end" in sentences(tmp_path)[1]


def test_a_request_that_ended_without_a_token_is_not_said_to_wait(tmp_path: Path) -> None:
    """By hand: an embedding is an answer, and no token."""
    rows = [row([f"{n}"], 0.1 * n, 0.1 * n + 0.1, "p", made=[0], ended={f"{n}": "stop"}) for n in range(40)]
    arrivals = [replace(request(f"{n}", 0.1 * n, 1, 1), made=0, why="stop") for n in range(40)]
    written_by_vllm(tmp_path, Recording(vllm_settings(), arrivals, rows))
    first = sentences(tmp_path)[1]
    assert "40 ended without one" in first and "still waited" not in first


def test_a_request_that_had_only_just_come_at_the_end_of_a_recording_is_not_the_first_sentence(tmp_path: Path) -> None:
    made = recorded(chats(50, 0.1, 200, 20), vllm_settings(), linear)
    came = made.arrivals[-1].at
    written_by_vllm(tmp_path, replace(made, steps=[one for one in made.steps if one.began < came - 0.001]))
    told = explain_result(tmp_path).told
    assert [one.arrival.id for one in told.lost] == ["chat 49"] and len(told.lost) >= 0.01 * len(told.requests)
    assert not told.lost_first


def test_where_no_request_got_a_token_no_setting_is_tried(tmp_path: Path) -> None:
    """Prompts of 5,000 tokens in steps of 64, whose clients leave after half a second."""
    load = [replace(one, why="cancelled", made=0, left_at=one.at + 0.5) for one in chats(10, 0.1, 5000, 20)]
    made = recorded(load, vllm_settings(step_tokens=64), linear)
    assert len(made.steps) >= 30 and not any(count for one in made.steps for count in one.made)
    written_by_vllm(tmp_path, made)
    told = explain_result(tmp_path, predicts=predicts)
    assert len(told.sentences()) == 2 and not told.found and not told.tried


def test_a_request_whose_only_step_is_cut_off_is_not_said_to_have_got_nothing(tmp_path: Path) -> None:
    """A killed server has written the end of a request, and not the step in which it got its only token."""
    path = written_by_vllm(tmp_path, recorded(chats(40, 0.1, 50, 1), vllm_settings(), linear))
    *lines, end, step = path.read_text().splitlines()
    assert json.loads(end)["kind"] == "request" and json.loads(step)["kind"] == "step"
    path.write_text("".join(f"{line}\n" for line in [*lines, end]))
    told = explain_result(tmp_path).told
    assert len(told.requests) == 40 and not told.lost


# -- which recording --------------------------------------------------------------------------------------------------


def loaded_rank(slots: int = 8) -> Recording:
    return recorded(chats(80, 0.02, 200, 40), vllm_settings(slots=slots), linear)


def idle_rank(slots: int = 8) -> Recording:
    return recorded(chats(25, 0.4, 200, 20), vllm_settings(slots=slots), linear)


@pytest.mark.parametrize("last", [0, 1])
def test_the_ranks_of_one_start_are_one_server_whichever_was_written_last(last: int, tmp_path: Path) -> None:
    loaded, idle = loaded_rank(), idle_rank()
    paths = [written_by_vllm(tmp_path, loaded, 0), written_by_vllm(tmp_path, idle, 1, "20261128-140000500")]
    os.utime(paths[1 - last], (1, 1))
    heading, first, *_ = sentences(tmp_path)
    assert "105 requests" in heading and "engines 0 and 1 of one server" in heading
    assert causes.PARTS[causes.NO_SLOT] in first and "that of 80 requests of engine 0 alone" in first
    document = json.loads(CliRunner().invoke(explain_command, [str(tmp_path), "--json"]).output)
    (by_engine,) = (kind for kind in document["TTFT"]["classes"] if kind[0]["kind"] == "engine")
    times = {of["class"]: of["p99_ms"] for of in by_engine}
    ranks = {"0": loaded, "1": idle}
    for engine, made in ranks.items():
        assert times[engine] == pytest.approx(p99(made, made.arrivals), rel=0.03)
    assert times["0"] > 10 * times["1"]
    story = said(tmp_path).splitlines()[-2:]
    assert "vllm-" not in " ".join(story) or last == 1, "the newest is found by the folder's name"


def test_many_ranks_are_counted_in_the_heading(tmp_path: Path) -> None:
    for rank in range(4):
        written_by_vllm(tmp_path, idle_rank(), rank)
    heading, *_ = sentences(tmp_path)
    assert heading.count("vllm-2026") == 1 and heading.startswith("4 ranks") and "4 engines of one server" in heading


@pytest.mark.parametrize("phase", [[], ["--phase", "vllm-20261128-140000000-4000-0"]])
def test_ranks_of_two_servers_that_ran_at_the_same_time_are_not_mixed(phase: list[str], tmp_path: Path) -> None:
    for started in ("20261128-140000000", "20261128-140000500"):
        written_by_vllm(tmp_path, idle_rank(), 0, started)
    assert "25 requests" in sentences(tmp_path, *phase)[0], "without other ranks there is nothing to mix"
    other = written_by_vllm(tmp_path, loaded_rank(), 1)
    with lab_error("recording-ambiguous", tmp_path):
        sentences(tmp_path, *phase)
    assert "80 requests" in sentences(other)[0]


def test_another_start_and_another_setting_are_named_and_not_mixed_in(tmp_path: Path) -> None:
    written_by_vllm(tmp_path, loaded_rank(), 0, "20261127-140000000", wall=1_789_900_000.0)
    written_by_vllm(tmp_path, idle_rank(slots=16), 1, "20261128-140000500")
    newest = written_by_vllm(tmp_path, loaded_rank(), 0)
    heading, *_ = sentences(tmp_path)
    assert "80 requests" in heading and "The folder also holds 2 others (--phase NAME)" in heading
    assert "vllm-20261127-140000000-4000-0" in heading and "vllm-20261128-140000500-4001-1" in heading
    older, *_ = sentences(tmp_path, "--phase", "vllm-20261127-140000000-4000-0")
    assert older.startswith("vllm-20261127-140000000-4000-0: 80 requests")
    assert "25 requests" in sentences(tmp_path / "vllm-20261128-140000500-4001-1.000001.jsonl")[0]
    assert newest.exists()


def test_an_incident_is_cut_out_by_seconds_or_by_the_time_of_day(tmp_path: Path) -> None:
    """20 s without waiting, and from then on twice as many requests at once as there are slots."""
    calm = chats(40, 0.5, 50, 5)
    burst = [request(f"burst {n}", 20.0, 50, 40) for n in range(16)]
    written_by_vllm(tmp_path, recorded([*calm, *burst], vllm_settings(slots=8), linear))
    document = json.loads(CliRunner().invoke(explain_command, [str(tmp_path), "--to", "20", "--json"]).output)
    assert document["requests"] == 40 and causes.NO_SLOT not in document["TTFT"]["parts_ms"]
    cut = sentences(tmp_path, "--from", "20s")
    assert "56 requests" in cut[0] and "16 of them came in the chosen time" in cut[0]
    assert causes.PARTS[causes.NO_SLOT] in cut[1]
    with lab_error("recording-empty"):
        CliRunner().invoke(explain_command, [str(tmp_path), "--from", "999"], catch_exceptions=False)
    day = 1_790_000_000.0
    assert Window.parse("60", None, day) == Window(60.0, None)
    at = datetime.fromtimestamp(day + 90)
    assert Window.parse(f"{at:%H:%M:%S}", f"{at:%Y-%m-%dT%H:%M:%S}.500000", day) == Window(90.0, 90.5)
    for bad in ("noon", "25:99"):
        with lab_error("window-invalid"):
            Window.parse(bad, None, day)
    with lab_error("window-invalid"):
        Window.parse("14:02", None, None)
    with lab_error("window-invalid"):
        Window.parse("9", "3", day)


def empty_rank(folder: Path, rank: int, started: str) -> None:
    written_by_vllm(folder, replace(loaded_rank(), arrivals=[], steps=[]), rank, started)


def test_a_rank_that_no_request_reached_does_not_hide_the_others(tmp_path: Path) -> None:
    written_by_vllm(tmp_path, loaded_rank(), 0)
    empty_rank(tmp_path, 1, "20261128-140000500")
    told = explain_result(tmp_path).told
    assert [read.engine for read in told.recordings] == ["0"] and len(told.requests) == 80


def test_a_server_that_no_request_reached_has_no_recording(tmp_path: Path) -> None:
    empty_rank(tmp_path, 0, "20261128-140000000")
    with lab_error("recording-empty", "0 requests and 0 steps"):
        explain_result(tmp_path)


def test_a_rank_that_computed_nothing_for_its_requests_is_not_left_out(tmp_path: Path) -> None:
    written_by_vllm(tmp_path, loaded_rank(), 0)
    stuck = replace(loaded_rank(), steps=[], arrivals=[replace(request("x", 0.0, 9, 1), why="cancelled", made=0)])
    path = written_by_vllm(tmp_path, stuck, 1, "20261128-140000500")
    arrived = {"t": 100.0, "v": 2, "model": "vllm", "instance": "1", "kind": "arrival", "name": "1", "id": "x"}
    arrived |= {"came": 1, "arrived": 100.0, "after": 0, "prompt": 9, "limit": 1, "priority": 2}
    path.write_text(f"{path.read_text().splitlines()[0]}\n{json.dumps(arrived)}\n")
    with lab_error("recording-without-steps", "1 requests and 0 steps"):
        explain_result(tmp_path)


def test_the_one_loaded_engine_of_many_is_named() -> None:
    loaded = [replace(loaded_rank(), engine="0"), *(replace(idle_rank(), engine=str(n)) for n in range(1, 12))]
    found = causes.explain_server(loaded, lambda _: {})
    first, *_ = findings.findings(found, loaded[0].settings, "TTFT")
    assert first.alone and (first.alone.kind, first.alone.title) == ("engine", "0")


# -- the limit that is in force ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "slots", "own", "changes"),
    [
        (causes.NO_SLOT, 256, {}, [{"max_num_sequences": "512"}, {"max_num_sequences": "1024"}]),
        (
            causes.NO_SLOT,
            256,
            {"max_num_active_seqs": "8"},
            [{"max_num_active_seqs": "16"}, {"max_num_active_seqs": "32"}],
        ),
        (causes.NO_SLOT, 10, {"max_num_active_seqs": "8"}, [{"max_num_active_seqs": "10"}]),
        (causes.NO_TOKENS, 256, {"max_num_scheduled_tokens": "1024"}, [{"max_num_scheduled_tokens": "2048"}]),
        (causes.NO_TOKENS, 256, {}, [{"max_num_tokens": "4096"}, {"max_num_tokens": "8192"}]),
    ],
)
def test_the_setting_that_is_named_is_the_one_that_limits(
    part: str, slots: int, own: dict[str, str], changes: list[dict[str, str]]
) -> None:
    """vLLM lets at most max_num_active_seqs of max_num_seqs run, where that is set; steps likewise."""
    settings = vllm_settings(slots=slots, step_tokens=2048)
    settings = replace(settings, words={**settings.words, **own})
    assert findings.remedies(part, settings, "TPOT", None, 100) == changes
    made = recorded(chats(5, 0.1, 100, 5), vllm_settings(slots=slots), linear)
    tried = findings.candidates(settings, causes.explain_requests(made))
    assert all(change in tried for change in changes)


# -- waits that no other request makes --------------------------------------------------------------------------------


def test_nobody_is_named_for_a_wait_for_a_grammar(tmp_path: Path) -> None:
    """By hand: two long requests decode, and short ones wait for a second until their grammar is there."""
    rows = [row(["a", "b"], 0.1 * n, 0.1 * n + 0.1) for n in range(40)]
    waits = [request(f"g{n}", 0.5 + 0.2 * n, 10, 1) for n in range(10)]
    for one in waits:
        until = int(10 * one.at) + 10
        for held in rows[int(10 * one.at) : until]:
            held.waiting, held.why = [*held.waiting, one.name], "not ready"
        done = rows[until]
        done.ids, done.phase, done.tokens, done.made = (
            [*done.ids, one.name],
            f"{done.phase}p",
            [*done.tokens, 10],
            [*done.made, 1],
        )
        done.ended = {**done.ended, one.name: "length"}
    arrivals = sorted([*waits, *(request(name, 0.0, 3000, 50) for name in "ab")], key=lambda one: one.at)
    written_by_vllm(tmp_path, Recording(vllm_settings(), arrivals, rows))
    told = explain_result(tmp_path)
    first = told.found["TTFT"][0]
    assert first.part == NOT_READY and first.share > 0.8
    assert first.culprit is None and first.behind is None and not any(one.is_victim for one in told.found["TTFT"])
    assert causes.PARTS[NOT_READY] in told.sentences()[1] and "most often for" not in told.sentences()[1]


# -- populations ------------------------------------------------------------------------------------------------------


def mixture(long: bool) -> list[Arrival]:
    """Short chat requests, and four of 30,000 tokens: 1.2 % of all."""
    giants = [request(f"giant {n}", 2.0 + 8.0 * n, 30_000, 20) for n in range(4)] if long else []
    return sorted([*chats(320, 0.1, 200, 20), *giants], key=lambda one: one.at)


@functools.cache
def of_a_mixture(long: bool) -> Recording:
    return recorded(mixture(long), vllm_settings(slots=256, blocks=40_000), linear)


def test_short_requests_that_wait_behind_a_few_long_ones_are_the_victims_and_the_first_sentence(tmp_path: Path) -> None:
    made, well = of_a_mixture(True), of_a_mixture(False)
    short = well.arrivals
    assert p99(made, short) > 5 * p99(well, short), "the long ones are the cause: without them it goes"
    written_by_vllm(tmp_path, made)
    table, (_, first, second, *_) = said_and_sentences(tmp_path)
    assert first.startswith("320 requests with prompts of 200 tokens wait behind 4 with prompts of 30,000 tokens")
    assert f"the p99 of their TTFT is {nearest_p99(made, short):,.0f} ms" in first
    assert "max_num_batched_tokens" not in first
    assert second.startswith("p99 of TTFT is") and causes.PARTS[causes.PREFILL] in second
    assert "that of 4 requests with prompts of 30,000 tokens alone" in second
    assert "prompt length" in table and "30,000 tokens" in table
    assert "p99 of TPOT is" not in table, "it is the short ones' alone, and said once"
    assert table.count("320 requests with prompts of 200 tokens wait behind 4") == 2


def test_a_tenant_that_floods_the_server_is_named_by_those_who_wait(tmp_path: Path) -> None:
    flood = [request(f"m{n}", 0.05 + 1e-4 * n, 400, 60, "mallory") for n in range(150)]
    alice = [request(f"a{n}", 0.1 * n, 100, 10, "alice") for n in range(40)]
    set_to = replace(SETTINGS, blocks=4000, step_tokens=1024, words={**SETTINGS.words, "max_num_sequences": "16"})
    arrivals = sorted([*flood, *alice], key=lambda one: one.at)
    made, well = recorded(arrivals, set_to), recorded(alice, set_to)
    assert p99(made, alice) > 5 * p99(well, alice)
    said_of_it = " ".join(sentences(written(tmp_path, made)))
    assert "Tenant mallory floods the server. 40 requests of tenant alice wait for 150 requests" in said_of_it


def test_an_urgent_request_behind_others_is_a_priority_inversion_that_the_scheduler_does_not_see(
    tmp_path: Path,
) -> None:
    bulk = [request(f"b{n}", 1e-3 * n, 300, 80, priority=9) for n in range(60)]
    urgent = [request(f"u{n}", 0.2 + 0.05 * n, 50, 10, priority=1) for n in range(20)]
    made = recorded(sorted([*bulk, *urgent], key=lambda one: one.at), vllm_settings(slots=8), linear)
    assert p99(made, urgent) > 5 * p99(recorded(urgent, vllm_settings(slots=8), linear), urgent)
    written_by_vllm(tmp_path, made)
    said_of_it = " ".join(sentences(tmp_path))
    assert (
        "Priority inversion (scheduling is fcfs, which does not look at it). 20 requests of priority 1 wait"
        in said_of_it
    )
    assert "behind 60 of priority 9" in said_of_it


def test_what_is_advised_is_best_for_those_who_wait_and_says_what_it_does_to_the_others(tmp_path: Path) -> None:
    """Urgent requests behind batch jobs on eight slots; the sentence is theirs, and so is the setting."""
    bulk = [request(f"b{n}", 1e-3 * n, 300, 80, priority=9) for n in range(60)]
    urgent = [request(f"u{n}", 0.2 + 0.05 * n, 50, 10, priority=1) for n in range(20)]
    load = sorted([*bulk, *urgent], key=lambda one: one.at)
    written_by_vllm(tmp_path, recorded(load, vllm_settings(slots=8), linear))
    told = explain_result(tmp_path, predicts=predicts)
    first = told.found["TTFT"][0]
    assert first.is_victim and first.group.title == "1", "the p99 of all is hardly longer than theirs"
    policy = vllm_settings(slots=8)
    sorted_by = recorded(load, replace(policy, words={**policy.words, "scheduling": "priority"}), linear)
    (one,) = (one for one in told.tried if one.change == {"scheduling": "priority"})
    assert told.advice["TTFT"].change == one.change
    assert first.behind
    for group, whose in ((first.group, urgent), (first.behind, bulk)):
        _, after = one.p99("TTFT", group) or (0.0, 0.0)
        assert after == pytest.approx(nearest_p99(sorted_by, whose), rel=0.05)
    said = " ".join(told.sentences())
    assert "scheduling_policy=priority" in said and "that of TTFT of priority 9" in said


def test_a_byte_for_a_number_is_tried_where_requests_wait_for_memory_and_numbers_have_two(tmp_path: Path) -> None:
    def tried(blocks: int, dtype: str) -> bool:
        settings = vllm_settings(slots=64, blocks=blocks, kv_cache_dtype=dtype)
        found = causes.explain_requests(recorded(chats(40, 0.01, 300, 60), settings, linear))
        return {"kv_cache_dtype": "fp8"} in findings.candidates(settings, found)

    assert tried(60, "auto") and not tried(60, "fp8") and not tried(4000, "auto")


@pytest.mark.parametrize("tokens", [40, 4000])
def test_a_request_is_named_as_in_the_way_if_it_stands_out_and_not_if_all_are_alike(tokens: int) -> None:
    """Two hundred at once on 64 slots; one of them has an answer of so many tokens."""
    load = [request("x", 0.0, 60, tokens), *chats(200, 0.0, 60, 40)]
    found = causes.explain_requests(recorded(load, vllm_settings(slots=64), linear))
    first, *_ = findings.findings(found, vllm_settings(slots=64), "TTFT")
    assert first.part == causes.NO_SLOT
    assert (first.culprit.name if first.culprit else None) == ("x" if tokens > 40 else None)


def test_requests_that_are_alike_are_one_class() -> None:
    found = causes.explain_requests(recorded(chats(50, 0.02, 60, 20), vllm_settings(), linear))
    assert findings.classes(found) == [] and findings.differing(found, vllm_settings(), "TTFT") == []


# -- the cause behind the mechanism -----------------------------------------------------------------------------------


def hashed(*numbers: int) -> bytes:
    """A hash of the sequence up to each token, as a recording has it."""
    key, out = 7, bytearray()
    for number in numbers:
        key = hash((key, number))
        out += (key & 0xFFFFFF).to_bytes(3, "little")
    return bytes(out)


def with_a_system_prompt(first: Sequence[int], gap: float, blocks: int) -> Recording:
    """Requests with a token of ``first``, 320 tokens of a system prompt, 15 of their own, and an answer of four."""
    arrivals = []
    for n, token in enumerate(first):
        ids = [token, *range(100, 420), *range(1000 + 20 * n, 1015 + 20 * n), 1, 2, 3, 4]
        arrivals.append(replace(request(str(n), gap * n, 336, 4), prefixes=hashed(*ids)))
    words = {**SETTINGS.words, "enable_kv_cache_reuse": "true", "max_num_sequences": "16", "engine": "openvino"}
    return recorded(arrivals, replace(SETTINGS, words=words, blocks=blocks, step_tokens=512), linear)


def used(made: Recording) -> Any:
    use = prefix_use(causes.explain_requests(made), made.settings)
    assert use is not None and use.tokens == 336 * len(made.arrivals)
    return use


def test_a_prompt_that_changes_in_its_first_token_was_never_seen(tmp_path: Path) -> None:
    made = with_a_system_prompt(range(40), 0.5, 400)
    use = used(made)
    assert (use.cached, use.evicted, use.unfinished) == (0, 0, 0)
    assert (use.compared, use.new_at_once, use.differ_after) == (39, 39, None)
    said_of_it = " ".join(sentences(written(tmp_path, made)))
    assert "0% of 13,440 prompt tokens came from the prefix cache; 100% of prompts differ from every" in said_of_it
    assert "in their first block (32 tokens)" in said_of_it


def test_a_prompt_that_stays_the_same_comes_from_the_cache_up_to_where_it_differs() -> None:
    use = used(with_a_system_prompt([5] * 40, 0.5, 400))
    assert use.new_at_once == 0 and use.evicted == use.unfinished == 0
    assert use.differ_after == 320 and use.cached == 39 * 320


def test_vllms_hashes_of_whole_blocks_say_the_same(tmp_path: Path) -> None:
    for first, said_of_it in (
        (range(40), "0% of 13,440 prompt tokens came from the prefix cache; 100% of prompts differ"),
        ([5] * 40, "93% of 13,440 prompt tokens came from the prefix cache."),
    ):
        made = with_a_system_prompt(first, 0.5, 400)
        words = {**made.settings.words, "engine": "vllm"}
        folder = tmp_path / str(len(set(first)))
        folder.mkdir()
        settings = replace(made.settings, words=words, recorded={"version": "0.32.0"})
        path = written_by_vllm(folder, replace(made, settings=settings))
        again, same = used(recording.read_recording(path)), used(made)
        assert again == same
        assert said_of_it in " ".join(sentences(folder))


def test_a_prefix_that_another_request_is_computing_is_not_yet_in_the_cache() -> None:
    use = used(with_a_system_prompt([5] * 2, 0.001, 400))
    assert use.cached + use.unfinished == 320 and use.evicted == 0


def test_a_prefix_that_gave_way_to_others_was_evicted() -> None:
    """The same prompt again, after others that fill the cache."""
    made = with_a_system_prompt([5, *range(20, 30), 5], 0.5, 24)
    use = used(made)
    assert use.evicted == 320 and use.cached == 0 and use.new_at_once == 10


def test_a_recording_without_hashes_says_that_the_cache_is_not_recorded(tmp_path: Path) -> None:
    made = of_a_mixture(True)
    assert prefix_use(causes.explain_requests(made), made.settings) is None
    for reuse, said_of_it in (("true", "Prefix cache: not recorded"), ("false", "Prefix caching is off")):
        folder = tmp_path / reuse
        folder.mkdir()
        words = {**made.settings.words, "enable_kv_cache_reuse": reuse}
        written_by_vllm(folder, replace(made, settings=replace(made.settings, words=words)))
        assert any(sentence.startswith(said_of_it) for sentence in sentences(folder))


def with_bulk_before(urgent_from: float) -> Recording:
    """Batch jobs that take all eight slots, and urgent requests that come from then on."""
    bulk = [request(f"b{n}", 1e-3 * n, 300, 80 if n else 800, priority=9) for n in range(60)]
    urgent = [request(f"u{n}", urgent_from + 0.05 * n, 50, 10, priority=1) for n in range(20)]
    return recorded([*bulk, *urgent], vllm_settings(slots=8), linear)


def test_those_in_the_way_are_named_although_they_came_before_the_chosen_time(tmp_path: Path) -> None:
    written_by_vllm(tmp_path, with_bulk_before(0.5))
    told = explain_result(tmp_path, start="0.4")
    first = told.found["TTFT"][0]
    assert len(told.told.requests) == 20 and {one.arrival.priority for one in first.group.requests} == {1}
    assert first.is_victim and first.behind and first.behind.title == "9"
    assert first.culprit and first.culprit.arrival.id == "b0"


def test_a_prefix_that_was_evicted_before_the_chosen_time_had_been_seen(tmp_path: Path) -> None:
    """Ten prompts, and in the chosen time the same ones again; the cache holds two of them."""
    made = with_a_system_prompt([*range(10), *range(10)], 0.5, 24)
    found = causes.explain_requests(made)
    for told in (used(made), prefix_use(found[10:], made.settings, found)):
        assert told is not None and told.evicted == 10 * 320
    last = prefix_use(found[10:], made.settings, found)
    assert last and (last.tokens, last.compared, last.new_at_once) == (10 * 336, 10, 0)
    told = explain_result(written(tmp_path, made), start="4.9").told
    whole = findings.find(findings.everybody(told.requests), "TTFT", made.settings, told.every, [])
    assert "evicted" in told.about_prefixes(whole) and "first block" not in told.about_prefixes(whole)


def test_what_was_not_kept_for_reuse_was_not_evicted(tmp_path: Path) -> None:
    made = with_a_system_prompt([5] * 40, 0.5, 400)
    off = replace(made.settings, words={**made.settings.words, "enable_kv_cache_reuse": "false"})
    steps = recorded(made.arrivals, off, linear).steps
    told = explain_result(written(tmp_path, replace(made, settings=off, steps=steps))).told
    said_of_it = told.about_prefixes(told.of("TTFT")[0])
    assert "is off" in said_of_it and "93% of them" in said_of_it and "evicted" not in said_of_it


# -- memory, and a machine that was held up ---------------------------------------------------------------------------


def test_a_long_request_that_holds_the_memory_is_named_by_the_many_that_wait_for_it(tmp_path: Path) -> None:
    """A document of 30,000 tokens holds nearly all of the KV cache; short chats hold few blocks, and are many."""
    shorts = chats(200, 0.03, 200, 100)
    giant = request("giant", 0.5, 30_000, 1500)
    settings = vllm_settings(blocks=2100)
    load = sorted([*shorts, giant], key=lambda one: one.at)
    made, well = recorded(load, settings, linear), recorded(shorts, settings, linear)
    assert p99(made, shorts) > 5 * p99(well, shorts), "the document is the cause: without it the wait goes"
    written_by_vllm(tmp_path, made)
    first = explain_result(tmp_path).found["TTFT"][0]
    assert first.part in findings.SHORT_OF_MEMORY
    assert first.is_victim and first.behind and [one.arrival.id for one in first.behind.requests] == ["giant"]
    assert first.culprit and first.culprit.arrival.id == "giant"


def test_a_block_that_many_requests_share_is_missing_once() -> None:
    """By hand: 30 blocks, 28 in use; two requests wait whose 20 first blocks a running one has, and need two each."""
    settings = vllm_settings(blocks=30)
    settings = replace(settings, words={**settings.words, "enable_kv_cache_reuse": "true"})
    arrivals = [
        replace(request(name, 0.0, 340, 1), prefixes=hashed(*range(320), *range(at, at + 20)))
        for name, at in (("a", 1000), ("b", 2000), ("c", 3000))
    ]
    rows = [row(["a"], 0.1, 0.2, "p", kv_blocks_used=28, waiting=["b", "c"], why="no KV block")]
    assert findings.shortage(Recording(settings, arrivals, rows)) == 2 + 2 - 2
    unshared = replace(settings, words={**settings.words, "enable_kv_cache_reuse": "false"})
    assert findings.shortage(Recording(unshared, arrivals, rows)) == 22 + 22 - 2


def test_hiccups_of_a_server_whose_clients_wait_for_their_answers_are_not_the_cause_for_good(tmp_path: Path) -> None:
    """Twelve clients on four slots: eight always wait. The machine stands still for 0.3 s every two seconds."""

    def with_hiccups(one: Step) -> float:
        over = one.began + linear(one)
        return linear(one) + 0.3 * (math.floor(over / 2) - math.floor(one.began / 2))

    settings = vllm_settings(slots=4)

    def in_a_closed_loop(cost: Callable[[Step], float]) -> Recording:
        load = chats(300, 0.0, 60, 40)
        again = player.Replay(player.scheduler_of(as_ours(settings)), load, cost, in_flight=12)
        steps = again.run()
        return Recording(settings, [replace(one, at=again.arrived[one.name]) for one in load], steps)

    made, well = in_a_closed_loop(with_hiccups), in_a_closed_loop(linear)
    assert p99(well, well.arrivals) > 0.6 * p99(made, made.arrivals), "without the hiccups it is hardly less"
    first = findings.findings(causes.explain_requests(made), settings, "TTFT")[0]
    assert first.part == causes.NO_SLOT and first.share > 0.5


def test_what_no_replay_can_test_is_not_said_to_be_predictable(tmp_path: Path) -> None:
    path = written_by_vllm(tmp_path, loaded_rank())
    path.write_text(path.read_text().replace('"beyond": []', '"beyond": ["LoRA adapters"]'))
    told = explain_result(tmp_path)
    assert told.advice["TTFT"].change and told.advice["TTFT"].p99("TTFT", told.found["TTFT"][0].group) is None
    first = told.sentences()[1]
    assert "not tested" in first and "LoRA adapters" in first and "labctl predict" not in first


def test_what_was_missing_is_said_in_blocks_and_no_operator_is_told_to_double_the_memory(tmp_path: Path) -> None:
    """By hand: 10 blocks, 9 in use; requests of 40 and 100 tokens need 3 + 7 more, and one is free."""
    settings = vllm_settings(blocks=10, block_bytes=2**20)
    rows = [row(["a"], 0.1 * n, 0.1 * n + 0.1, "d", kv_blocks_used=9) for n in range(20)]
    for one in rows[1:]:
        one.waiting, one.why = ["b", "c"], ["no KV block"] * 2
    rows += [
        row(["b", "c"], 2.0, 2.1, "pp", ended={"b": "length", "c": "length"}, kv_blocks_used=10, joined=["b", "c"])
    ]
    arrivals = [request("a", 0.0, 1, 40), request("b", 0.05, 40, 1), request("c", 0.05, 100, 1)]
    made = Recording(settings, arrivals, rows)
    assert findings.shortage(made) == 9
    written_by_vllm(tmp_path, made)
    _, first, *_ = sentences(tmp_path)
    assert "short of 9 KV blocks (144 tokens, 0.0 GiB): it has 10" in first
    assert "gpu_memory_utilization" in first and "num_gpu_blocks" not in first


def test_no_setting_helps_is_said_only_where_the_machine_is_nearly_all_of_it(tmp_path: Path) -> None:
    """The machine stands for 1.5 s; with five slots requests wait for a slot as well, with 64 they do not."""

    def held(one: Step) -> float:
        return linear(one) + (1.5 if one.began <= 2.0 < one.began + linear(one) else 0.0)

    arrivals = chats(120, 0.05, 60, 40)
    for slots, helps in ((64, False), (5, True)):
        folder = tmp_path / str(slots)
        folder.mkdir()
        written_by_vllm(folder, recorded(arrivals, vllm_settings(slots=slots), held))
        _, first, *_ = sentences(folder)
        assert causes.PARTS[causes.HELD] in first
        assert ("No setting" in first) != helps, first
        assert ("max_num_seqs=" in first) == helps, first


# -- the client beside the server -------------------------------------------------------------------------------------


def bench_lines(made: Recording, first: dict[str, float], back: float) -> str:
    lines = []
    for one in made.arrivals:
        start = 100 + one.at - 0.03
        responses = [[100 + first[one.name] + back, "x"], [100 + first[one.name] + back + 1, "y"]]
        line = {"id": one.name.replace(" ", "-"), "start": start, "due": start - 0.02, "end": 0.0, "tokens": 2}
        lines.append(json.dumps({**line, "responses": responses}))
    return "".join(f"{line}\n" for line in lines)


def served_ids(made: Recording, called: str) -> Recording:
    """With vLLM's ids: its kind, what the client called the request, and vLLM's suffix."""
    arrivals = [replace(one, id=called.format(one.name.replace(" ", "-"))) for one in made.arrivals]
    return replace(made, arrivals=arrivals)


def first_tokens(made: Recording) -> dict[str, float]:
    return {name: one.over for one in reversed(made.steps) for name, n in zip(one.ids, one.made, strict=True) if n}


def joined(called: str, folder: Path) -> tuple[Recording, Mapping[str, Sent]]:
    """What is read of a recording whose requests have such ids, and what of the client's file is joined with it."""
    made = served_ids(through_a_front_end(0.1), called)
    path = written_by_vllm(folder, made)
    (folder / "requests.jsonl").write_text(bench_lines(made, first_tokens(made), 0.25))
    read = recording.read_recording(path)
    return read, clients.read_clients(folder / "requests.jsonl")(read)


@pytest.mark.parametrize("called", ["chatcmpl-{}", "cmpl-{}-0", "chatcmpl-{}-0a1b2c3d", "cmpl-{}-0-0a1b2c3d"])
def test_what_labctl_bench_saw_is_joined_by_vllms_ids_as_by_its_own(called: str, tmp_path: Path) -> None:
    plain, sent = joined("{}", tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    read, found = joined(called, again)
    assert [one.id for one in read.arrivals] == [called.format(one.id) for one in plain.arrivals]
    assert found == sent and len(sent) == len(plain.arrivals)


def test_the_parts_of_what_labctl_bench_saw_are_the_clients_ttft(tmp_path: Path) -> None:
    made = served_ids(through_a_front_end(0.1), "chatcmpl-{}")
    first = first_tokens(made)
    read, sent = joined("chatcmpl-{}", tmp_path)
    at = {one.name: one.at for one in made.arrivals}
    by_id = {one.id: one.name for one in made.arrivals}
    for one in causes.explain_requests(read, sent):
        name = by_id[one.arrival.id]
        parts = one.ttft[causes.LATE], one.ttft[causes.WAY], one.ttft[causes.DELIVERY]
        assert parts == pytest.approx((20, 30, 250), abs=0.01)
        assert one.whole("TTFT") == pytest.approx(1e3 * (first[name] + 0.25 - (at[name] - 0.05)), abs=0.01)


def test_the_way_back_to_the_client_is_the_first_sentence_where_it_takes_longest(tmp_path: Path) -> None:
    made = served_ids(through_a_front_end(0.1), "chatcmpl-{}")
    path = written_by_vllm(tmp_path, made)
    (tmp_path / "requests.jsonl").write_text(bench_lines(made, first_tokens(made), 0.25))
    assert causes.PARTS[causes.DELIVERY] in sentences(path, "--client", tmp_path / "requests.jsonl")[1]


def vllm_bench(made: Recording, first: dict[str, float], shift: float = 0.0) -> str:
    starts = [100 + one.at - 0.03 + shift for one in made.arrivals]
    ttfts = [100 + first[one.name] + 0.2 + shift - start for one, start in zip(made.arrivals, starts, strict=True)]
    return json.dumps({"start_times": starts, "ttfts": ttfts, "itls": [[0.1]] * len(starts)})


def test_what_vllm_bench_serve_saw_is_joined_by_number_without_its_warm_up_and_other_runs(tmp_path: Path) -> None:
    made = through_a_front_end(0.1)
    ids = [f"cmpl-bench-0a1b2c3d-{n}-0-deadbeef" for n in range(len(made.arrivals))]
    arrivals = [replace(one, id=id) for one, id in zip(made.arrivals, ids, strict=True)]
    warm = [replace(request("warm", -0.5, 5, 1), id=ids[0]), replace(request("old", -0.4, 5, 1), id="cmpl-bench-x-1-0")]
    before = (("warm", -0.5, -0.45), ("old", -0.4, -0.35))
    rows = [row([name], began, over, "p", ended={name: "length"}) for name, began, over in before] + [*made.steps]
    late = replace(request("late", 50.0, 5, 1), id=ids[0])  # of a second run with the same prefix
    rows.append(row(["late"], 50.0, 50.1, "p", ended={"late": "length"}))
    whole = replace(made, arrivals=[*warm, *arrivals, late], steps=rows)
    first = first_tokens(made)
    (tmp_path / "bench.json").write_text(vllm_bench(made, first))
    path = written_by_vllm(tmp_path, whole)
    read = recording.read_recording(path)
    sent = clients.read_clients(tmp_path / "bench.json")(read)
    assert sorted(read_id(read, name) for name in sent) == sorted(ids)
    found = [one for one in causes.explain_requests(read, sent) if one.name in sent]
    assert all(one.ttft[causes.WAY] == pytest.approx(30, abs=0.01) for one in found)
    assert all(one.ttft[causes.DELIVERY] == pytest.approx(200, abs=0.01) for one in found)
    (tmp_path / "bench.json").write_text(vllm_bench(made, first, shift=500.0))
    with lab_error("client-unjoined"):
        clients.read_clients(tmp_path / "bench.json")(read)


def read_id(read: Recording, name: str) -> str:
    return str(next(one.id for one in read.arrivals if one.name == name))


def test_a_client_file_of_another_clock_or_another_form_is_refused(tmp_path: Path) -> None:
    made = served_ids(through_a_front_end(0.1), "{}")
    read = recording.read_recording(written_by_vllm(tmp_path, made))
    file = tmp_path / "requests.jsonl"
    lines = [json.loads(line) for line in bench_lines(made, first_tokens(made), 0.1).splitlines()]
    file.write_text("".join(f"{json.dumps({**line, 'start': line['start'] + 900})}\n" for line in lines))
    with lab_error("client-clock"):
        clients.read_clients(file)(read)
    for line in lines:
        line["responses"] = [[at - 900, text] for at, text in line["responses"]]
    file.write_text("".join(f"{json.dumps({**line, 'start': line['start'] - 900})}\n" for line in lines))
    with lab_error("client-clock"):
        clients.read_clients(file)(read)
    never = '{"id": "chat-0", "start": NaN, "responses": []}'
    for text in ("{", '{"start_times": [1]}', '{"id": 3}', "[]", never):
        file.write_text(text)
        with lab_error("client-unreadable"):
            clients.read_clients(file)
    with lab_error("client-unreadable"):
        clients.read_clients(tmp_path)


def test_a_client_whose_requests_reached_one_of_two_engines_is_joined_with_that_one(tmp_path: Path) -> None:
    made = served_ids(through_a_front_end(0.1), "{}")
    others = replace(made, arrivals=[replace(one, id=f"other-{n}") for n, one in enumerate(made.arrivals)])
    written_by_vllm(tmp_path, made, 0)
    written_by_vllm(tmp_path, others, 1, "20261128-140000500")
    file = tmp_path / "requests.jsonl"
    file.write_text(bench_lines(made, first_tokens(made), 0.25))
    told = explain_result(tmp_path, client=file).told
    joined = {one.engine for one in told.requests if causes.DELIVERY in one.ttft}
    assert joined == {"0"} and len(told.requests) == 2 * len(made.arrivals)
    file.write_text(file.read_text().replace('"id": "chat', '"id": "nobody'))
    with lab_error("client-unjoined"):
        explain_result(tmp_path, client=file)
