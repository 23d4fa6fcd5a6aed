"""Load tools of other projects: the command of a measurement, and their figures under our names.

A figure is renamed only where it means the same. Where a definition differs a little, the table of names says how.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from labctl.runtimes.environments import Environment
from labctl.runtimes.layers import Layer, layer
from labctl.runtimes.processes import Action, Command
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.stats import PERCENTILES, Slo
from labkit.workloads.bench import Workload

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
CHUNK = "each gap between two chunks; a chunk can hold several tokens"
# `vllm bench serve` without the rest of vLLM's command line, which needs packages of vLLM's own HTTP server.
VLLM_BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main; from vllm.utils.argparse_utils import "
    "FlexibleArgumentParser as P; p = P(); add_cli_args(p); main(p.parse_args())"
)


@dataclass(frozen=True)
class Load:
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
    def prepare(self) -> Action[str]:
        """What makes it ready to run. Raises LabError: it cannot run here."""

    @abstractmethod
    def command(self, load: Load) -> Command:
        """The process that measures."""

    @abstractmethod
    def read(self, load: Load) -> dict[str, Any]:
        """Its figures by our names; times in ms, rates per second. Raises LabError: a request failed."""

    def lines(self, workload: Workload) -> str:
        """The file of prompts: one line for each request, so that no tool draws them by chance."""
        text, tokens = self.prompt_keys
        prompts = [workload.prompts[number % len(workload.prompts)] for number in range(workload.requests)]
        return "".join(json.dumps({text: one, tokens: workload.output_tokens}) + "\n" for one in prompts)

    def _document(self, path: Path) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LabError(f"{self.name} left no result", f"{path}: {error}", "its last lines are above") from error
        return document

    def _renamed(self, load: Load, figure: Callable[[str, bool], Any]) -> dict[str, Any]:
        """``figure(their name, whether it is a rate)`` by our names; those of a stream only where there is one."""
        found = {"request_count": load.workload.requests, "error_request_count": 0}
        for column, ours in OURS.items():
            if (load.streamed or ours not in OF_STREAMS) and (load.workload.slo or ours != "goodput"):
                found[ours] = figure(self.names[column][0], ours in RATES)
        return found

    def _refuse_failures(self, failed: int, load: Load) -> None:
        if failed:
            what = f"{failed} of {load.workload.requests} requests failed; nothing is averaged"
            raise LabError(what, f"{self.name} wrote {load.out}", "labctl logs shows the server's side")


class AIPerf(Tool):
    """NVIDIA's AIPerf, in an environment of its own."""

    name = "aiperf"
    prompt_keys = ("text", "output_length")
    names: ClassVar = {
        "TTFT": ("time_to_first_token", "until the first chunk with text; the HTTP request is part of it"),
        "TPOT": ("inter_token_latency", "the same: a mean of each request"),
        "ITL": ("inter_chunk_latency", CHUNK),
        "latency": ("request_latency", "until the last chunk with text"),
        "tokens/s": ("output_token_throughput", "tokens are counted in the text again"),
        "requests/s": ("request_throughput", "over its whole profiling phase"),
        "goodput/s": ("goodput", "its limits are on its own TTFT and TPOT"),
    }
    # It cannot read a tokenizer's folder when these are set to anything, even to 0.
    environment: ClassVar[Mapping[str, str]] = {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}

    def prepare(self) -> Action[str]:
        return self._packages.install()

    @property
    def _packages(self) -> Environment:
        return Environment(self.name, self.workspace)

    def command(self, load: Load) -> Command:
        work = load.workload
        argv = [str(self._packages.python), "-m", "aiperf", "profile", "--model", load.model, "--url", load.url]
        argv += ["--endpoint-type", "completions", *(["--streaming"] if load.streamed else [])]
        argv += ["--use-legacy-max-tokens", "--extra-inputs", "ignore_eos:true", "--tokenizer", load.tokenizer]
        argv += ["--input-file", str(load.prompts), "--custom-dataset-type", "single_turn"]
        argv += ["--dataset-sampling-strategy", "sequential", "--request-count", str(work.requests)]
        argv += ["--warmup-request-count", str(work.warmup)] if work.warmup else []
        argv += ["--request-rate", f"{work.rate:g}", "--arrival-pattern", "poisson"] if work.rate else []
        argv += [] if work.rate else ["--concurrency", str(load.concurrency)]
        argv += ["--goodput", _limits(work.slo, "time_to_first_token", "inter_token_latency")] if work.slo else []
        argv += ["--random-seed", str(work.seed), "--output-artifact-dir", str(load.out), "--ui-type", "none"]
        # One process sends and one counts, as one process of ours does: the server shares the machine.
        argv += ["--workers-max", "1", "--record-processor-service-count", "1"]
        return Command([*argv, "--no-gpu-telemetry", "--no-server-metrics"], self.environment)

    def read(self, load: Load) -> dict[str, Any]:
        document = self._document(load.out / "profile_export_aiperf.json")

        def figure(name: str, rate: bool) -> Any:
            found = document[name]
            return found["avg"] if rate else {key: found[key] for key in _statistics("min", "max")}

        try:
            answered = int(document.get("request_count", {"avg": 0})["avg"])  # missing where all failed
            self._refuse_failures(load.workload.requests - answered, load)
            return self._renamed(load, figure)
        except KeyError as error:
            raise LabError(f"the result of {self.name} has no {error}", str(load.out)) from error


class VllmBench(Tool):
    """``vllm bench serve`` of the packages that ``labctl engines install vllm`` installs."""

    name = "vllm-bench"
    prompt_keys = ("prompt", "output_tokens")
    names: ClassVar = {
        "TTFT": ("ttft", "until the first chunk with text; the HTTP request is part of it"),
        "TPOT": ("tpot", "the same: a mean of each request"),
        "ITL": ("itl", CHUNK),
        "latency": ("e2el", "until the last chunk with text"),
        "tokens/s": ("output_throughput", "tokens are those of the answer's usage"),
        "requests/s": ("request_throughput", "until its last request has returned"),
        "goodput/s": ("request_goodput", "its limits are on its own TTFT and TPOT"),
    }

    def prepare(self) -> Action[str]:
        found = self._packages.require()
        return Action("vllm bench serve", lambda listener: f"in {found}")

    @property
    def _packages(self) -> Layer:
        return layer("vllm", self.workspace)

    def command(self, load: Load) -> Command:
        work = load.workload
        argv = [sys.executable, "-c", VLLM_BENCH, "--backend", "openai", "--base-url", load.url]
        argv += ["--endpoint", "/v1/completions", "--model", load.model, "--tokenizer", load.tokenizer]
        argv += ["--dataset-name", "custom", "--dataset-path", str(load.prompts), "--skip-chat-template"]
        argv += ["--disable-shuffle", "--custom-output-len", str(work.output_tokens), "--ignore-eos"]
        argv += ["--num-prompts", str(work.requests), "--num-warmups", str(work.warmup)]
        argv += ["--request-rate", f"{work.rate:g}"] if work.rate else ["--max-concurrency", str(load.concurrency)]
        argv += ["--goodput", *_limits(work.slo, "ttft", "tpot").split()] if work.slo else []
        argv += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
        argv += ["--metric-percentiles", ",".join(map(str, PERCENTILES)), "--seed", str(work.seed)]
        argv += ["--save-result", "--result-dir", str(load.out), "--result-filename", "result.json", "--disable-tqdm"]
        return Command(argv, self._packages.environment)

    def read(self, load: Load) -> dict[str, Any]:
        document = self._document(load.out / "result.json")

        def figure(name: str, rate: bool) -> Any:
            if rate:
                return document[name]
            theirs = {"avg": "mean", **{key: key for key in _statistics()[1:]}}
            return {key: document[f"{their}_{name}_ms"] for key, their in theirs.items()}

        try:
            self._refuse_failures(load.workload.requests - document["completed"], load)
            return self._renamed(load, figure)
        except KeyError as error:
            raise LabError(f"the result of {self.name} has no {error}", str(load.out)) from error


TOOLS: Mapping[str, type[Tool]] = {tool.name: tool for tool in (AIPerf, VllmBench)}


def _statistics(*more: str) -> list[str]:
    return ["avg", "std", *(f"p{number}" for number in PERCENTILES), *more]


def _limits(slo: Slo, ttft: str, tpot: str) -> str:
    limits = ((ttft, slo.ttft), (tpot, slo.tpot))
    return " ".join(f"{name}:{limit:.12g}" for name, limit in limits if limit is not None)


def names_table(tool: type[Tool], goodput: bool) -> tuple[Sequence[str], list[list[str]]]:
    """Header and rows: our names beside the tool's, and where the definitions differ."""
    rows = [[column, *tool.names[column]] for column in OURS if goodput or column != "goodput/s"]
    return ("here", tool.name, "its definition"), rows
