"""Another project's load tool and ``labctl bench``, on one stack under one load, in turn: do their figures agree?

``make bench ARGS=load-tools`` compares with AIPerf; ``--client guidellm`` or ``vllm-bench`` with another one. Each
round is one measurement of each; every other round begins with the tool. What is compared are ratios within a round.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

from labctl.labs import bench, tool_bench
from labctl.labs.load_tools import TOOLS
from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.stack.session import Session
from labkit.tables import format_table
from labkit.workloads.bench import Workload

STACK, MODEL = "two-servers", "apart-gpt2"
PACE = {"step_ms": 20, "token_ms": 0.5}  # as on a GPU: the processor is free for clients, which take little beside it
WORK = Workload(output_tokens=48, requests=24, warmup=4)
IN_FLIGHT, WITHIN = 4, 0.03
# Title: our name in result.json, its statistic ("" for a rate), and whether the yardstick is about it.
FIGURES = {
    "TTFT p50 ms": ("time_to_first_token", "p50", True),
    "TPOT p50 ms": ("time_per_output_token", "p50", True),
    "ITL p50 ms": ("inter_token_latency", "p50", True),
    "latency p50 ms": ("request_latency", "p50", False),
    "requests/s": ("request_throughput", "", True),
    "tokens/s": ("output_token_throughput", "", False),  # a tool may count tokens in another way
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--client", choices=sorted(TOOLS), default="aiperf", help="load-tools: which tool")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Medians of both and of their ratios over the rounds, and whether the ratios are within 3 % of 1."""
    session = Session.open(Silent())
    lab, _ = session.catalog.stack(STACK)
    tool = TOOLS[asked.client](session.workspace)
    tool.prepare(session.listener)
    as_asked = Options(set=PACE, runtime="local", ports="auto", timeout=300.0)
    rounds: list[dict[str, dict[str, Any]]] = []
    with ephemeral_stack(session, lab, STACK, as_asked):
        up = Options(runtime="local")  # it is measured as it runs
        ways = {
            "labctl bench": lambda: bench.bench_stack(session, lab, STACK, up, MODEL, WORK, [IN_FLIGHT]),
            tool.name: lambda: tool_bench.bench_with_tool(session, lab, STACK, up, MODEL, WORK, [IN_FLIGHT], tool),
        }
        for number in range(asked.rounds):
            order = [*ways] if number % 2 == 0 else [*reversed(ways)]
            found = {name: next(iter(ways[name]().metrics.values())) for name in order}
            rounds.append({name: dict(found[name]) for name in ways})
            print(f"round {number + 1}: " + ", ".join(f"{t} {_ratio(rounds[-1], t):.3f}" for t in _shared(rounds[-1])))
    return _compared(rounds, tool.name)


def _value(metrics: dict[str, Any], title: str) -> float:
    name, statistic, _ = FIGURES[title]
    return float(metrics[name][statistic] if statistic else metrics[name])


def _shared(found: dict[str, dict[str, Any]]) -> list[str]:
    """The figures that both have: a tool may lack one."""
    return [title for title, (name, *_) in FIGURES.items() if all(name in one for one in found.values())]


def _ratio(found: dict[str, dict[str, Any]], title: str) -> float:
    """The tool's figure over ours, in one round."""
    ours, theirs = found.values()
    return _value(theirs, title) / _value(ours, title)


def _compared(rounds: list[dict[str, dict[str, Any]]], tool: str) -> dict[str, Any]:
    rows, far, ratios = [], [], {}
    for title in _shared(rounds[0]):
        every = [_ratio(found, title) for found in rounds]
        ratios[title] = ratio = statistics.median(every)
        medians = [statistics.median(_value(found[way], title) for found in rounds) for way in rounds[0]]
        rows.append(
            (title, *(f"{one:.2f}" for one in medians), f"{ratio:.3f}", f"{min(every):.3f}", f"{max(every):.3f}")
        )
        if FIGURES[title][2] and abs(ratio - 1) > WITHIN:
            far.append(f"{title} {ratio - 1:+.1%}")
    print(format_table(rows, ("median", "labctl bench", tool, "ratio", "least", "most"), right=range(1, 6)))
    load = os.getloadavg()[0]
    print(f"{'not met: ' + ', '.join(far) if far else 'met'} (within {WITHIN:.0%}); load of the machine {load:.1f}")
    return {"client": tool, "rounds": rounds, "ratios": ratios, "load": load, "far": far}
