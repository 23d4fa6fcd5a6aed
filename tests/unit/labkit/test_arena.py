"""The arena: policies in a process of their own, every answer checked, and an adversary that finds small traces."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT
from click.testing import CliRunner

from labctl.cli.arena import arena_command
from labkit.predict import attack, audit, games, referee
from labkit.predict import policy as process
from labkit.predict.field import PlayingField
from labkit.predict.policy import Foul, Player
from labkit.predict.traces import hashes
from labsched.recording import Arrival, StepRow

ARENA = ROOT / "labs" / "extras" / "arena"
WRONG = {"wrong_overbooks": "reserve", "wrong_peeks": "crashed", "wrong_starves": "starves"}
SMALL = PlayingField(slots=2, blocks=8, block_size=4, step_tokens=16)
Write = Callable[[str], Path]


def arrival(name: str, at: float, prompt: int, made: int, tenant: str = "a", limit: int = 0) -> Arrival:
    limit = limit or made
    return Arrival(name, at, 0, prompt, limit, made, "stop", word=made < limit, tenant=tenant)


@pytest.fixture
def policy(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "policy.py"
        path.write_text(text)
        return path

    return write


def foul(path: Path, trace: Sequence[Arrival] | None = None) -> Foul:
    with pytest.raises(Foul) as found, Player(path) as player:
        referee.play_trace(player, trace or [arrival(str(n), 0.0, 8, 12) for n in range(1, 6)], SMALL)
    return found.value


def test_a_policy_without_functions_plays_as_the_shipped_scheduler_does(policy: Write) -> None:
    trace = games.public_traces()["chat"]
    with Player(policy("")) as empty, Player(policy("def line(view): return [one.id for one in view.waiting]")) as same:
        assert referee.play_trace(empty, trace) == referee.play_trace(same, trace)


def test_the_line_decides_who_goes_first(policy: Write) -> None:
    last = policy("def line(view): return [one.id for one in reversed(view.waiting)]")
    with Player(last) as player:
        played = referee.game(player, [arrival(name, 0.0, 8, 4) for name in "123"], replace(SMALL, slots=1))
    assert [row.batch for row in played.rows[::4]] == [["3"], ["2"], ["1"]]


def test_a_view_has_no_length_of_an_answer(policy: Write) -> None:
    text = "def line(view):\n    raise ValueError(sorted(vars(view.waiting[0])), sorted(vars(view)))\n"
    found = str(foul(policy(text), [arrival("1", 0.0, 8, 3, limit=9)]))
    assert "'limit'" in found and "'made'" in found
    known = {"cached", "came", "came_ms", "id", "limit", "made", "overtaken", "preempted", "priority", "prompt"}
    assert set(found.split("[")[1].split("]", maxsplit=1)[0].replace("'", "").split(", ")) == known | {"tenant"}


@pytest.mark.parametrize(
    ("text", "word", "said"),
    [
        ("def line(view): return ['9']", "line", "request 9 does not wait"),
        ("def line(view): return [one.id for one in view.waiting] * 2", "line", "twice"),
        ("def line(view): return 7", "line", "not a list"),
        ("def places(view): return 3", "places", "3 places"),
        ("def places(view): return True", "places", "not a whole number"),
        ("def places(view): return 0", "starves", "admits no request"),
        ("def reserve(view): return -1", "reserve", "-1 is not a whole number"),
        ("def reserve(view): return 10**6", "starves", "admits no request"),
        ("def victim(view): return '9'", "victim", "request 9 does not run"),
        ("def line(view): return 1 / 0", "crashed", "line 1: ZeroDivisionError"),
        ("def line(view)", "crashed", "SyntaxError"),
        ("import os\nos._exit(0)", "crashed", "its process has ended"),
        ("import os\ndef line(view): os.kill(os.getppid(), 0); open('x')", "crashed", "Too many open files"),
        ("import subprocess\ndef line(view): subprocess.run(['true'])", "crashed", "line 2"),
        ("def line(view): return [' ' * 2**31]", "crashed", "MemoryError"),
        ("print('{}')\ndef line(view): print('{}'); return 7", "line", "not a list"),
        pytest.param(  # a busy machine gives it no second of a processor before its patience ends
            "import time\ndef line(view):\n    while time.thread_time() % 1 < 0.99: pass\n    return []",
            "slow",
            "ms",
            marks=pytest.mark.night,
        ),
    ],
)
def test_a_policy_that_breaks_a_rule_is_disqualified_by_name(policy: Write, text: str, word: str, said: str) -> None:
    found = foul(policy(text))
    assert (found.word, said in str(found)) == (word, True), str(found)


def test_a_policy_that_does_not_answer_is_ended(policy: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PATIENCE_S", 0.5)
    assert foul(policy("def line(view):\n    while True: pass")).word == "hangs"


def test_a_change_of_the_view_changes_nothing(policy: Write) -> None:
    trace = games.public_traces()["flood"]
    text = "def reserve(view):\n    n = len(view.running)\n    view.running.clear(); view.blocks = 0\n    return n"
    with Player(policy(text)) as meddler, Player(ARENA / "fcfs.py") as plain:
        assert referee.play_trace(meddler, trace) == referee.play_trace(plain, trace)


def test_the_service_gap_is_counted_while_both_tenants_wait() -> None:
    def row(name: str, tokens: int, made: int, waiting: list[str]) -> StepRow:
        return StepRow([name], "p" if tokens > 1 else "d", [tokens], [made], [0], [], [], set(), waiting, 0)

    tenants = {"1": "a", "2": "b", "3": "a"}
    both = ["2", "3"]
    rows = [row("1", 10, 1, both), row("1", 1, 1, both), row("1", 1, 1, ["3"]), row("2", 4, 1, ["3"])]
    assert audit.service_gap(rows, tenants) == 10 + 2 + 2  # a prompt of 10, and two new tokens that count twice
    assert audit.service_gap(rows, {"1": "a", "2": "a", "3": "a"}) == 0


@pytest.fixture(scope="module")
def hidden() -> Mapping[str, Sequence[Arrival]]:
    return games.hidden_traces("7")


@pytest.mark.night
def test_every_shipped_policy_plays_and_the_wrong_ones_are_disqualified(
    hidden: Mapping[str, Sequence[Arrival]],
) -> None:
    slow = ("vtc", "wrong_starves")  # a convoy takes seconds
    found = {}
    for path in ARENA.glob("*.py"):
        chosen = ("thrash-8", "convoy-7") if path.stem in slow else ("thrash-8",)
        found[path.stem] = referee.judge_policy(path, {name: hidden[name] for name in chosen})
    assert len(found) >= 13 + len(WRONG)
    assert {name: one.foul for name, one in found.items() if one.foul} == WRONG


@pytest.mark.night
def test_the_victim_rules_rank_by_recomputed_tokens_as_upstream_says(hidden: Mapping[str, Sequence[Arrival]]) -> None:
    """vLLM's RFC #54644: least computed first wastes least, most computed first wastes most."""
    traces = {name: trace for name, trace in hidden.items() if name.startswith("thrash")}
    names = ("victim_least_computed", "victim_random", "victim_most_computed")
    lost = [referee.judge_policy(ARENA / f"{name}.py", traces).figure("recomputed_tokens") for name in names]
    assert lost == sorted(lost) and lost[0] < lost[-1]


@pytest.mark.night
def test_one_seed_makes_one_set_of_hidden_traces() -> None:
    assert games.hidden_traces("a") == games.hidden_traces("a") != games.hidden_traces("b")
    assert len(games.hidden_traces("a")) == 20 and len(games.public_traces()) == 6
    assert all(one.made <= one.limit for trace in games.hidden_traces("a").values() for one in trace)


@pytest.mark.night
def test_the_adversary_finds_a_small_trace_that_still_refutes() -> None:
    with Player(ARENA / "fcfs.py") as first, Player(ARENA / "vtc.py") as fair:
        found = attack.attack(first, fair, "service_gap", 1.5, seconds=60)
        assert found and len(found.trace) <= 6
        assert found.figure == referee.play_trace(first, found.trace, attack.GROUND)["service_gap"]
        assert found.figure > 1.5 * referee.play_trace(fair, found.trace, attack.GROUND)["service_gap"]


def test_the_adversary_finds_nothing_between_a_policy_and_itself() -> None:
    with Player(ARENA / "fcfs.py") as one, Player(ARENA / "fcfs.py") as other:
        assert attack.attack(one, other, "recomputed_tokens", 1.5, seconds=0.5) is None


def test_the_adversary_names_a_foul() -> None:
    with Player(ARENA / "wrong_peeks.py") as wrong, Player(ARENA / "fcfs.py") as other:
        found = attack.attack(wrong, other, "service_gap", 1.5, seconds=60)
    assert found and "no attribute 'answer'" in found.foul


@pytest.mark.night
def test_the_command_shows_a_table_without_a_score_and_names_who_is_out(policy: Write) -> None:
    mine = policy("def victim(view): return view.running[0].id")
    done = CliRunner().invoke(arena_command, ["run", "--public", "fcfs", str(mine), "wrong_overbooks"])
    assert done.exit_code == 0, done.output
    assert "policy  " in done.stdout and "fcfs" in done.stdout
    assert "disqualified: wrong_overbooks (reserve)" in done.stdout
    document = json.loads(CliRunner().invoke(arena_command, ["run", "--public", "fcfs", "--json"]).stdout)
    assert list(document[0]["games"]) == ["chat", "bursts", "articles", "flood", "coding_agents", "documents"]


# -- prompts that share their beginnings -------------------------------------------------------------------------------

ONE = PlayingField(slots=1, blocks=6, block_size=4, step_tokens=32)  # memory for one request and no more
DOCUMENT, QUESTION, ANSWER = 16, 4, 4  # tokens


def questions(*documents: str, apart: float = 0.0) -> list[Arrival]:
    """A question about each of these documents, ``apart`` seconds after the one before."""
    return [
        Arrival(
            str(number),
            number * apart,
            0,
            DOCUMENT + QUESTION,
            ANSWER,
            ANSWER,
            "length",
            prefixes=hashes(document, 0, DOCUMENT) + hashes(f"question {number}", 0, QUESTION),
        )
        for number, document in enumerate(documents, 1)
    ]


def cached(policy: str, trace: Sequence[Arrival], ground: PlayingField) -> float:
    with Player(ARENA / f"{policy}.py") as player:
        return referee.play_trace(player, trace, ground)["cached_tokens"]


def test_the_longest_prefix_first_computes_each_document_once() -> None:
    """Theorem 3.1 of its paper: all requests are there, and the cache holds the longest."""
    trace = questions(*"abcabcabc")
    assert cached("longest_prefix", trace, ONE) == 6 * DOCUMENT
    assert cached("fcfs", trace, ONE) == 0


@pytest.mark.parametrize(("other", "tokens"), [("a", DOCUMENT), ("b", 0)])
def test_a_view_counts_what_a_waiting_request_would_find_in_the_cache(policy: Write, other: str, tokens: int) -> None:
    text = "def line(view):\n    if view.waiting[0].id == '2': raise ValueError(view.waiting[0].cached)\n    return []"
    with pytest.raises(Foul, match=f"ValueError: {tokens}$"), Player(policy(text)) as player:
        referee.play_trace(player, questions("a", other, apart=60.0), ONE)


def test_a_preemption_leaves_no_half_computed_prompt_for_which_requests_wait_for_ever() -> None:
    long = Arrival("long", 0.0, 0, 24, 4, 4, "length", prefixes=hashes("long", 0, 24))
    trace = [Arrival("grows", 0.0, 0, 4, 20, 20, "length"), long]
    with Player(ARENA / "fcfs.py") as player:
        found = referee.play_trace(player, trace, PlayingField(slots=2, blocks=10, block_size=4, step_tokens=4))
    assert found["preemptions"] == 1


def test_prompts_share_nothing_where_the_trace_does_not_say_what_they_have_in_common() -> None:
    trace = [replace(one, prefixes=b"") for one in questions(*"aaa")]
    assert cached("longest_prefix", trace, ONE) == 0


@pytest.mark.parametrize("seed", range(3))
def test_on_the_trace_of_documents_the_longest_prefix_first_finds_more_than_first_come_first_served(seed: int) -> None:
    trace = games.documents(random.Random(seed), games.REQUESTS)
    assert cached("longest_prefix", trace, PlayingField()) > 1.1 * cached("fcfs", trace, PlayingField())
