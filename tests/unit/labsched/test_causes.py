"""What a request's TTFT and TPOT are made of: the parts add up, and three known causes are the first sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from explaining import in_both_ways
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import SETTINGS, cost, recorded, request, written

from labctl.recordings import picture
from labkit.evidence.names import letter
from labsched.explain import causes, findings
from labsched.log.settings import SchedulerSettings
from labsched.replay import figures, player
from labsched.replay.recording import Arrival, Recording, Sent
from labsched.step import Step


def standing_still(*pauses: tuple[float, float]) -> Callable[[Step], float]:
    """A step's time, where the machine stands still in these, each its beginning and its length in seconds."""

    def seconds(row: Step) -> float:
        over = row.began + cost(row)
        for began, length in pauses:
            if began < over and began + length > row.began:
                over += began + length - max(began, row.began)
        return over - row.began

    return seconds


@st.composite
def workloads(draw: st.DrawFn) -> list[Arrival]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    at, found = 0.0, []
    for number in range(draw(st.integers(1, 25))):
        found.append(request(str(number), at, rng.randint(1, 150), rng.randint(1, 30)))
        at += rng.expovariate(draw(st.sampled_from([20, 200, 2000])))
    return found


@settings(max_examples=25)
@given(workloads(), st.sampled_from(["guaranteed_no_evict", "max_utilization"]), st.booleans(), st.floats(0, 1))
def test_the_parts_of_each_request_add_up_to_its_times(
    arrivals: list[Arrival], policy: str, late: bool, held: float
) -> None:
    set_to = replace(SETTINGS, words={**SETTINGS.words, "batch_scheduler_policy": policy})
    made = recorded(arrivals, set_to, standing_still((0.05, held)))
    sent = {a.name: Sent(a.at - 0.002, a.at - 0.003 if late else None) for a in arrivals}
    came: dict[str, list[float]] = {a.name: [] for a in arrivals}
    for row in made.steps:
        for name, count in zip(row.ids, row.made, strict=True):
            came[name] += [row.over] * count
    found = causes.explain_requests(made, sent)
    assert {one.name for one in found} == {*came}
    for one in found:
        parts = [*one.ttft.items(), *one.tpot.items()]
        assert all(ms >= -1e-9 for part, ms in parts if part != causes.LATE), "a client may send early"
        due, start = sent[one.name].due, sent[one.name].start
        times, begun = came[one.name], start if due is None else due
        assert one.whole("TTFT") == pytest.approx(1e3 * (times[0] - begun), abs=1e-3)
        gaps = len(times) - 1
        assert one.whole("TPOT") == pytest.approx(1e3 * (times[-1] - times[0]) / gaps if gaps else 0.0, abs=1e-3)


def test_one_long_prompt_is_the_cause_for_those_that_decode_beside_it() -> None:
    whole = replace(SETTINGS, words={**SETTINGS.words, "max_num_sequences": "16"}, step_tokens=512, blocks=400)
    short = [request(str(n), 0.02 * n, 4, 12) for n in range(20)]
    made = recorded(sorted([*short, request("long", 0.2, 500, 2, "eve")], key=lambda one: one.at), whole)
    found, *_ = findings.findings(causes.explain_requests(made), whole, "TPOT")
    assert found.culprit and (found.part, found.culprit.name) == (causes.PROMPTS, "long")
    assert found.changes[0] == {"max_num_tokens": "256"}


def test_a_request_that_is_preempted_has_that_as_a_part() -> None:
    tight = replace(
        SETTINGS, words={**SETTINGS.words, "batch_scheduler_policy": "max_utilization"}, blocks=6, step_tokens=256
    )
    made = recorded([request(str(n), 0.0, 30, 60) for n in range(3)], tight)
    assert sum(len(row.evicted) for row in made.steps) > 0
    assert any(one.tpot.get(causes.PREEMPTED) for one in causes.explain_requests(made))


def test_explain_prints_the_cause_first_and_tables_whose_last_row_is_the_sum(tmp_path: Path) -> None:
    path = written(tmp_path, recorded([request(str(n), 0.001 * n, 20, 30) for n in range(40)]))
    shown, document = in_both_ways(path)
    assert shown.startswith("chat: 40 requests in") and "no slot" in shown and "labctl explain" in shown
    assert shown.split("\n\n")[1].startswith("p99 of TTFT is")
    for metric in ("TTFT", "TPOT"):
        *parts, whole = document[metric]["parts_ms"].values()
        assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx(whole)
    assert document["TTFT"]["largest"]["part"] == causes.NO_SLOT
    asked, called = document["TTFT"]["percentiles"]["p99"], document["TTFT"]["names"]["p99"]
    assert called == letter(int(asked)) and f"labctl explain {path} {called}" in " ".join(shown.split())
    before, after = document["TTFT"]["p99_ms"]
    assert document["TTFT"]["change"] == {"max_num_sequences": "16"} and after < before, (
        "of 8 and 16, for forty at once"
    )


def test_the_picture_is_of_the_second_with_the_longest_waits(tmp_path: Path) -> None:
    """One request at a time until 5 s; then forty at once."""
    calm = [request(f"a{n}", 0.5 * n, 10, 3) for n in range(10)]
    made = recorded([*calm, *(request(f"b{n}", 5.0, 40, 30) for n in range(40))])
    assert picture.worst_second(made) >= 4.9
    picture.draw_explanation(causes.explain_requests(made), made, tmp_path / "explained.png", "made up")
    assert (tmp_path / "explained.png").read_bytes()[:4] == b"\x89PNG"


# -- four recordings of the same requests, each made slow in one way that can be taken away again ----------------------

WIDE = replace(SETTINGS, words={**SETTINGS.words, "max_num_sequences": "16"}, step_tokens=512, blocks=200)
PAUSED = standing_still((1.0, 1.5), (3.2, 0.9))


def chats(prompt: int = 60, limit: int = 40) -> list[Arrival]:
    """A load that 16 slots and 200 blocks serve at once; ``prompt`` and ``limit`` are the most of its tokens."""
    rng = random.Random(5)
    return [request(str(n), 0.025 * n, rng.randint(5, prompt), rng.randint(limit // 2, limit)) for n in range(200)]


LONG = [request(f"long {n}", 0.3 + 2.4 * n, 500, 2) for n in range(2)]  # half a second each


def slow_prompts(row: Step) -> float:
    """A step's time where a token of a prompt takes 1 ms."""
    return cost(row) + 9e-4 * sum(tokens for tokens, letter in zip(row.tokens, row.phase, strict=True) if letter == "p")


def explained_p99(folder: Path, made: Recording, late: float = 0.0) -> tuple[dict[str, Any], str]:
    """What `labctl explain` says of the p99 of TTFT, for a program and in its first words.

    Args:
        late: seconds by which the client sent every request of the last third later than it should have.
    """
    result = written(folder, made)
    last = made.arrivals[2 * len(made.arrivals) // 3].at
    lines = [
        {"id": a.name, "phase": "chat", "start": 100 + a.at, "due": 100 + a.at - late * (a.at > last)}
        for a in made.arrivals
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said, document = in_both_ways(result)
    return document["TTFT"], " ".join(said.split("\n\n")[1].split())


def p99(made: Recording) -> float:
    return float(figures.figures(made.steps, {a.name: a.at for a in made.arrivals})["ttft_p99_ms"])


@dataclass(frozen=True)
class Case:
    """A load with one cause of its p99, on a server with these settings, and the same without that cause.

    ``setting``: the one whose change is advised; "" where none helps.
    """

    part: str
    setting: str
    sent: Sequence[Arrival]
    set_to: SchedulerSettings
    cost: Callable[[Step], float]
    well: Callable[[], Recording]


CASES = {
    "memory": Case(
        causes.NO_BLOCK,
        "max_tokens_in_paged_kv_cache",
        chats(),
        replace(WIDE, blocks=8),
        cost,
        lambda: recorded(chats(), WIDE),
    ),
    "long prompts": Case(
        causes.PROMPTS,
        "max_num_tokens",
        sorted([*chats(9, 9), *LONG], key=lambda one: one.at),
        WIDE,
        slow_prompts,
        lambda: recorded(chats(9, 9), WIDE, slow_prompts),
    ),
    "machine": Case(causes.HELD, "", chats(), WIDE, PAUSED, lambda: recorded(chats(), WIDE)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_makes_a_p99_and_takes_it_along_when_it_goes_is_the_first_sentence(case: Case, tmp_path: Path) -> None:
    """The cause is known, because p99 falls to less than a third where that alone is taken away. What is said of a
    setting is what a server with that setting would have done.
    """
    made = recorded(case.sent, case.set_to, case.cost)
    assert p99(case.well()) < p99(made) / 3
    found, said = explained_p99(tmp_path, made)
    assert found["largest"]["part"] == case.part and causes.PARTS[case.part] in said
    assert [*found["change"]] == [case.setting][: bool(case.setting)]
    if not case.setting:
        assert "=" not in said
        return
    before, after = found["p99_ms"]
    true = p99(recorded(case.sent, player.change_settings(case.set_to, found["change"]), case.cost))
    assert after == pytest.approx(true, rel=0.15)
    assert ("would not help" in said) == (true > 0.9 * p99(made)), (before, after)


def test_a_client_that_cannot_keep_its_rate_is_the_first_sentence(tmp_path: Path) -> None:
    """By the clocks of both: the server answered each request as fast as the others."""
    found, said = explained_p99(tmp_path, recorded(chats(), WIDE), late=0.7)
    assert found["largest"]["part"] == causes.LATE and causes.PARTS[causes.LATE] in said
    assert not found["change"] and "=" not in said
