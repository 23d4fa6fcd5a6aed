"""The arena: does the referee outlive damaged policies, how do the victim rules of vLLM's RFC #54644 rank, and how far
are the shipped policies from the best schedule? And do a replay and Triton rank the policies alike?
"""

from __future__ import annotations

import argparse
import ast
import itertools
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import optimum
from labctl.labs import arena as on_servers
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.predict import games, referee
from labkit.tables import format_table
from labsched.recording import Arrival

POLICIES = Path(__file__).resolve().parents[1] / "labs" / "extras" / "arena"
MUTANTS, SEEDS = 200, 20
RULES = {
    "least computed": "victim_least_computed",
    "last admitted": "fcfs",
    "random": "victim_random",
    "most computed": "victim_most_computed",
}
TRACES = ("chat", "bursts", "flood", "documents", "thrash")  # of the ranks
RANKED = ("goodput_per_s", "ttft_p99_ms", "recomputed_tokens", "steps")
CHANGED = 0.06  # of the nodes of a policy's syntax tree
NAMES = ("id", "came", "made", "limit", "prompt", "cached", "tenant", "waiting", "running", "served", "blocks", "none")


class Mutate(ast.NodeTransformer):
    """Changes some numbers, names, operators and answers of a program."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        draw = self._rng
        if draw.random() >= CHANGED:
            return node
        changed: ast.AST = node
        if isinstance(node, ast.Constant) and not isinstance(node.value, str):
            changed = ast.Constant(draw.choice((0, -1, 1, None, 10**9, 1.5, "x")))
        elif isinstance(node, ast.Attribute):
            changed = ast.Attribute(node.value, draw.choice(NAMES), node.ctx)
        elif isinstance(node, ast.Return):
            changed = ast.Return(ast.Constant(draw.choice((None, 0, 5, "1"))))
        elif isinstance(node, ast.BinOp):
            changed = ast.BinOp(node.right, draw.choice((ast.Sub(), ast.Mult(), ast.Div(), ast.Pow())), node.left)
        return ast.copy_location(changed, node)


def mutant(text: str, rng: random.Random) -> str:
    """A policy's text with a few changes."""
    return ast.unparse(ast.fix_missing_locations(Mutate(rng).visit(ast.parse(text))))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests-each", type=int, default=48, help="arena: requests of each trace on a server")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """An exception of the referee ends the run; ``--count`` is the number of mutated policies."""
    return ranks(asked.requests_each) if "ranks" in (asked.part or ()) else of_the_referee(asked.count or MUTANTS)


def ranks(requests: int) -> dict[str, Any]:
    """Every shipped policy on a replay and on Triton: the pairs of policies that both rank alike, by column."""
    paths = [path for path in sorted(POLICIES.glob("*.py")) if not path.stem.startswith("wrong")]
    traces = {name: _made(name, requests) for name in TRACES}
    began = time.monotonic()
    pairs = on_servers.play_policies(
        Session.open(Silent()), paths, traces, lambda policy, trace: print(policy, trace, flush=True)
    )
    out = [
        f"{pair.replay.name}: {side.foul} {side.why}"
        for pair in pairs
        for side in (pair.replay, pair.server)
        if side.foul
    ]
    same = sum(found is None for pair in pairs for found in pair.partings.values())
    found: dict[str, Any] = {"games": sum(len(pair.partings) for pair in pairs), "same": same, "disqualified": out}
    rows = []
    for trace in traces:
        for column in RANKED:
            alike, count = _alike([pair for pair in pairs if trace in pair.server.games], trace, column)
            found[f"{trace} {column}"] = alike, count
            rows.append([trace, column, f"{alike} of {count}", f"{alike / max(1, count):.1%}"])
    for column in RANKED:
        sums = [found[f"{trace} {column}"] for trace in traces]
        alike, count = sum(one[0] for one in sums), sum(one[1] for one in sums)
        found[column] = alike, count
        rows.append(["all", column, f"{alike} of {count}", f"{alike / max(1, count):.1%}"])
    print(format_table(rows, ["trace", "column", "pairs ranked alike", "share"], right=[2, 3]))
    print(
        f"{same} of {found['games']} games are the same step by step; {time.monotonic() - began:.0f} s", *out, sep="\n"
    )
    return found


def _made(name: str, requests: int) -> list[Arrival]:
    maker = next(one for one in (*games.PUBLIC, *games.ADVERSARIAL) if one.__name__ == name)
    return maker(random.Random(f"ranks {name}"), requests)


def _alike(pairs: Sequence[on_servers.PolicyResult], trace: str, column: str) -> tuple[int, int]:
    """How many pairs of policies both sides rank alike, ties too, and of how many."""
    values = [(pair.replay.games[trace][column], pair.server.games[trace][column]) for pair in pairs]
    both = list(itertools.combinations(values, 2))
    return sum(_sign(a[0] - b[0]) == _sign(a[1] - b[1]) for a, b in both), len(both)


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def of_the_referee(count: int) -> dict[str, Any]:
    """All measurements that need no server."""
    ends = _mutants(count)
    print(
        format_table(
            [[word, str(number)] for word, number in ends.most_common()], ["mutated policies", "count"], right=[1]
        )
    )
    lost = {name: [_recomputed(file, seed) for seed in range(SEEDS)] for name, file in RULES.items()}
    order = list(RULES)
    kept = sum(all(lost[a][seed] <= lost[b][seed] for a, b in itertools.pairwise(order)) for seed in range(SEEDS))
    ends_kept = sum(lost[order[0]][seed] < lost[order[-1]][seed] for seed in range(SEEDS))
    rows = [[name, f"{sum(numbers) / SEEDS:,.0f}"] for name, numbers in lost.items()]
    print(format_table(rows, ["victim", "recomputed tokens"], right=[1]))
    print(f"whole order in {kept} of {SEEDS} seeds; least computed below most computed in {ends_kept}")
    over = _over_the_best()
    return {"mutants": dict(ends), "recomputed": lost, "whole_order": kept, "ends_in_order": ends_kept, "over": over}


def _over_the_best() -> dict[str, dict[str, float]]:
    """Each policy's mean ratio over small traces, where answers are as long as their limits, and where they are not."""
    policies = [path for path in sorted(POLICIES.glob("*.py")) if not path.stem.startswith("wrong")]
    kinds = {"limits are lengths": True, "answers end early": False}
    measured = {kind: optimum.ratios(policies, SEEDS, known) for kind, known in kinds.items()}
    means = {kind: {name: statistics.mean(them) for name, them in of.items()} for kind, of in measured.items()}
    order = sorted(means["limits are lengths"], key=means["limits are lengths"].__getitem__)
    rows = [[name, *(f"{means[kind][name]:.3f}" for kind in kinds)] for name in order]
    print(format_table(rows, ["steps until answered, over the best", *kinds], right=[1, 2]))
    return means


def _mutants(count: int) -> Counter[str]:
    paths = [path for path in sorted(POLICIES.glob("*.py")) if ast.parse(path.read_text()).body[1:]]
    trace = {"thrash": games.thrash(random.Random(1), 60)}
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            rng = random.Random(number)
            path = Path(folder) / f"mutant_{number}.py"
            path.write_text(mutant(rng.choice(paths).read_text(), rng))
            ends[referee.judge_policy(path, trace).foul or "plays"] += 1
    return ends


def _recomputed(policy: str, seed: int) -> float:
    trace = {"thrash": games.thrash(random.Random(seed), games.REQUESTS)}
    return referee.judge_policy(POLICIES / f"{policy}.py", trace).figure("recomputed_tokens")
