"""What a request's TTFT and TPOT are made of: the parts add up, and three known causes are the first sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import SETTINGS, cost, written

from labctl.cli.explain import explain_command
from labkit.pictures import explained
from labsched import causes, replay
from labsched.recording import Arrival, Recording, Settings


def recorded(arrivals: Sequence[Arrival], set_to: Settings = SETTINGS) -> Recording:
    """What a server would record of these requests; each waiting request has the scheduler's reason."""
    whys: list[str] = []
    scheduler = replay.scheduler_of(set_to)
    done = replay.Replay(scheduler, arrivals, cost, seen=lambda step: whys.append(step.plan.because.why))
    rows = [replace(row, why=[why] * len(row.waiting)) for row, why in zip(done.run(), whys, strict=True)]
    return Recording(set_to, list(arrivals), rows, "steps-made-up.jsonl")


def request(name: str, at: float, prompt: int, limit: int, tenant: str = "") -> Arrival:
    return Arrival(name, at, 0, prompt, limit, limit, "length", tenant=tenant)


@st.composite
def workloads(draw: st.DrawFn) -> list[Arrival]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    at, found = 0.0, []
    for number in range(draw(st.integers(1, 25))):
        found.append(request(str(number), at, rng.randint(1, 150), rng.randint(1, 30)))
        at += rng.expovariate(draw(st.sampled_from([20, 200, 2000])))
    return found


@settings(max_examples=40)
@given(workloads(), st.sampled_from(["guaranteed_no_evict", "max_utilization"]), st.booleans())
def test_the_parts_of_each_request_add_up_to_its_times(arrivals: list[Arrival], policy: str, late: bool) -> None:
    set_to = replace(SETTINGS, words={**SETTINGS.words, "batch_scheduler_policy": policy})
    made = recorded(arrivals, set_to)
    sent = {a.name: causes.Sent(a.at - 0.002, a.at - 0.003 * late) for a in arrivals}
    came: dict[str, list[float]] = {a.name: [] for a in arrivals}
    for row in made.rows:
        for name, count in zip(row.batch, row.made, strict=True):
            came[name] += [row.over] * count
    found = causes.requests(made, sent)
    assert {one.name for one in found} == {*came}
    for one in found:
        times, begun = came[one.name], sent[one.name].due or sent[one.name].start
        assert one.whole("TTFT") == pytest.approx(1e3 * (times[0] - begun), abs=1e-3)
        gaps = len(times) - 1
        assert one.whole("TPOT") == pytest.approx(1e3 * (times[-1] - times[0]) / gaps if gaps else 0.0, abs=1e-3)


def test_a_full_kv_cache_is_the_cause_and_more_memory_the_change() -> None:
    """Each request fills 5 of 10 blocks, so two run, where there are 16 slots."""
    small = replace(SETTINGS, words={**SETTINGS.words, "max_num_sequences": "16"}, blocks=10)
    made = recorded([request(str(n), 0.01 * n, 100, 50) for n in range(20)], small)
    found = causes.finding(causes.requests(made), small)
    assert found.part == causes.NO_BLOCK and found.share > 0.8 and found.culprit
    assert found.change == {"max_tokens_in_paged_kv_cache": str(2 * 10 * 32)}


def test_one_long_prompt_is_the_cause_for_those_that_decode_beside_it() -> None:
    whole = replace(SETTINGS, words={**SETTINGS.words, "max_num_sequences": "16"}, step_tokens=512, blocks=400)
    short = [request(str(n), 0.02 * n, 4, 12) for n in range(20)]
    made = recorded(sorted([*short, request("long", 0.2, 500, 2, "eve")], key=lambda one: one.at), whole)
    found = causes.finding(causes.requests(made), whole, "TPOT")
    assert (found.part, found.culprit) == (causes.PROMPTS, "long")
    assert found.change == {"max_num_tokens": "256"}


def test_a_client_that_sends_late_is_the_cause_and_no_setting_helps() -> None:
    arrivals = [request(str(n), 0.1 * n, 10, 5) for n in range(20)]
    sent = {a.name: causes.Sent(a.at, a.at - 0.5) for a in arrivals}
    found = causes.finding(causes.requests(recorded(arrivals), sent), SETTINGS)
    assert found.part == causes.LATE and found.share > 0.8 and not found.change


def test_a_request_that_is_preempted_has_that_as_a_part() -> None:
    tight = replace(
        SETTINGS, words={**SETTINGS.words, "batch_scheduler_policy": "max_utilization"}, blocks=6, step_tokens=256
    )
    made = recorded([request(str(n), 0.0, 30, 60) for n in range(3)], tight)
    assert sum(len(row.preempted) for row in made.rows) > 0
    assert any(one.tpot.get(causes.PREEMPTED) for one in causes.requests(made))


def test_explain_prints_the_cause_first_and_tables_whose_last_row_is_the_sum(tmp_path: Path) -> None:
    path = written(tmp_path, recorded([request(str(n), 0.001 * n, 20, 30) for n in range(40)]))
    shown = CliRunner().invoke(explain_command, [str(path)], catch_exceptions=False).output
    assert shown.startswith("p99 of TTFT is") and "no slot" in shown and "labctl explain" in shown
    document = json.loads(CliRunner().invoke(explain_command, [str(path), "--json"]).output)
    for metric in ("TTFT", "TPOT"):
        *parts, whole = document[metric]["parts_ms"].values()
        assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx(whole)
    assert document["TTFT"]["largest"]["part"] == causes.NO_SLOT
    before, after = document["TTFT"]["p99_ms"]
    assert document["TTFT"]["change"] == {"max_num_sequences": "8"} and after < before


def test_the_picture_is_of_the_second_with_the_longest_waits(tmp_path: Path) -> None:
    """One request at a time until 5 s; then forty at once."""
    calm = [request(f"a{n}", 0.5 * n, 10, 3) for n in range(10)]
    made = recorded([*calm, *(request(f"b{n}", 5.0, 40, 30) for n in range(40))])
    assert explained.worst_second(made) >= 4.9
    explained.draw(causes.requests(made), made, tmp_path / "explained.png", "made up")
    assert (tmp_path / "explained.png").read_bytes()[:4] == b"\x89PNG"
