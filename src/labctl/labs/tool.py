"""A load tool of another project: a command, and figures that get our names.

A figure is renamed only where it means the same. Where a definition differs a little, the table of names says how.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from labctl.listener import Listener
from labctl.runtimes.processes import Command
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.stats import PERCENTILES
from labkit.workloads.bench import Workload
from labsched.slo import Slo

# Columns of the table of names: our column, our name in result.json. A tool's class has its own names in this order.
OURS = {
    "TTFT": "time_to_first_token",
    "TPOT": "time_per_output_token",
    "ITL": "inter_token_latency",
    "latency": "request_latency",
    "tokens/s": "output_token_throughput",
    "requests/s": "request_throughput",
    "goodput/s": "goodput",
}
OF_STREAMS = ("time_to_first_token", "time_per_output_token", "inter_token_latency", "goodput")
RATES = ("output_token_throughput", "request_throughput", "goodput")
ABSENT = "none"  # the name of a figure that a tool does not have
CHUNK = "each gap between two chunks; a chunk can hold several tokens"


@dataclass(frozen=True)
class ToolLoad:
    """One measurement: of ``model`` at ``url`` (without /v1), with ``concurrency`` unless the workload has a rate.

    ``streamed``: the model answers token by token. ``tokenizer`` and ``out`` are folders, ``prompts`` is a file.
    """

    url: str
    model: str
    tokenizer: str
    streamed: bool
    workload: Workload
    concurrency: int
    prompts: Path
    out: Path


class Tool(ABC):
    """A load tool; ``names`` are its figures in the order of ``OURS``, each with how it differs from ours."""

    name: ClassVar[str]
    names: ClassVar[Mapping[str, tuple[str, str]]]
    prompt_keys: ClassVar[tuple[str, str]]  # of a line of the file of prompts: the text, the tokens to generate

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    @abstractmethod
    def prepare(self, listener: Listener) -> None:
        """Make it ready to run. Raises LabError: it cannot run here."""

    @abstractmethod
    def command(self, load: ToolLoad) -> Command:
        """The process that measures."""

    @abstractmethod
    def read(self, load: ToolLoad) -> dict[str, Any]:
        """Its figures by our names; times in ms, rates per second. Raises LabError: a request failed."""

    def lines(self, workload: Workload) -> str:
        """The file of prompts: one line for each request, so that no tool draws them by chance."""
        text, tokens = self.prompt_keys
        prompts = [workload.prompts[number % len(workload.prompts)] for number in range(workload.requests)]
        return "".join(json.dumps({text: prompt, tokens: workload.output_tokens}) + "\n" for prompt in prompts)

    def _document(self, path: Path) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LabError(
                f"{self.name} left no result",
                f"{path}: {error}",
                "its last lines are above",
                code="tool-result-missing",
            ) from error
        return document

    def _renamed(self, load: ToolLoad, figure: Callable[[str, bool], Any]) -> dict[str, Any]:
        """``figure(their name, whether it is a rate)`` by our names; those of a stream only where there is one."""
        figures = {"request_count": load.workload.requests, "error_request_count": 0}
        left_out: set[str] = set()
        if not load.streamed:
            left_out.update(OF_STREAMS)
        if not load.workload.slo:
            left_out.add("goodput")
        for column, ours in OURS.items():
            name = self.names[column][0]
            if name != ABSENT and ours not in left_out:
                figures[ours] = figure(name, ours in RATES)
        return figures

    def _refuse_failures(self, failed: int, load: ToolLoad) -> None:
        if failed:
            raise LabError(
                f"{failed} of {load.workload.requests} requests failed; nothing is averaged",
                f"{self.name} wrote {load.out}",
                "labctl logs shows the server's side",
                code="requests-failed",
            )


def statistics(*more: str) -> list[str]:
    """Our names of a figure's statistics."""
    return ["avg", "std", *(f"p{number}" for number in PERCENTILES), *more]


def limits_in(slo: Slo, ttft: str, tpot: str) -> str:
    """Limits as words, under a tool's own names: ``ttft:500 tpot:60``."""
    limits = ((ttft, slo.ttft), (tpot, slo.tpot))
    return " ".join(f"{name}:{limit:.12g}" for name, limit in limits if limit is not None)


def names_table(tool: type[Tool], goodput: bool) -> tuple[Sequence[str], list[list[str]]]:
    """Header and rows: our names beside the tool's, and where the definitions differ."""
    rows = [[column, *tool.names[column]] for column in OURS if goodput or column != "goodput/s"]
    return ("here", tool.name, "its definition"), rows
