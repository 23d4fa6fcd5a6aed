"""Load tools of other projects: AIPerf, ``vllm bench serve`` and GuideLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from labctl.labs.tool import ABSENT, CHUNK, Tool, ToolLoad, limits_in, statistics
from labctl.listener import Listener
from labctl.runtimes.environments import Environment
from labctl.runtimes.layers import Layer, layer
from labctl.runtimes.processes import Command
from labkit.errors import LabError
from labkit.stats import PERCENTILES
from labkit.workloads.bench import Workload

# `vllm bench serve` without the rest of vLLM's command line, which needs packages of vLLM's own HTTP server.
VLLM_BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main; from vllm.utils.argparse_utils import "
    "FlexibleArgumentParser as P; p = P(); add_cli_args(p); main(p.parse_args())"
)


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
    # It cannot read a tokenizer's folder when these have any value, even 0.
    environment: ClassVar[Mapping[str, str]] = {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}

    def prepare(self, listener: Listener) -> None:
        self._packages.install(listener)

    @property
    def _packages(self) -> Environment:
        return Environment(self.name, self.workspace)

    def command(self, load: ToolLoad) -> Command:
        work = load.workload
        argv = [str(self._packages.python), "-m", "aiperf", "profile", "--model", load.model, "--url", load.url]
        argv += ["--endpoint-type", "completions", *(["--streaming"] if load.streamed else [])]
        argv += ["--use-legacy-max-tokens", "--extra-inputs", "ignore_eos:true", "--tokenizer", load.tokenizer]
        argv += ["--input-file", str(load.prompts), "--custom-dataset-type", "single_turn"]
        argv += ["--dataset-sampling-strategy", "sequential", "--request-count", str(work.requests)]
        argv += ["--warmup-request-count", str(work.warmup)] if work.warmup else []
        argv += ["--request-rate", f"{work.rate:g}", "--arrival-pattern", "poisson"] if work.rate else []
        argv += [] if work.rate else ["--concurrency", str(load.concurrency)]
        argv += ["--goodput", limits_in(work.slo, "time_to_first_token", "inter_token_latency")] if work.slo else []
        argv += ["--random-seed", str(work.seed), "--output-artifact-dir", str(load.out), "--ui-type", "none"]
        # One process sends and one counts, as one process of ours does: the server shares the machine.
        argv += ["--workers-max", "1", "--record-processor-service-count", "1"]
        return Command([*argv, "--no-gpu-telemetry", "--no-server-metrics"], self.environment)

    def read(self, load: ToolLoad) -> dict[str, Any]:
        document = self._document(load.out / "profile_export_aiperf.json")

        def figure(name: str, rate: bool) -> Any:
            statistic = document[name]
            return statistic["avg"] if rate else {key: statistic[key] for key in statistics("min", "max")}

        try:
            answered = int(document.get("request_count", {"avg": 0})["avg"])  # missing where all failed
            self._refuse_failures(load.workload.requests - answered, load)
            return self._renamed(load, figure)
        except KeyError as error:
            raise LabError(
                f"the result of {self.name} has no {error}", str(load.out), code="tool-result-incomplete"
            ) from error


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

    def prepare(self, listener: Listener) -> None:
        self._packages.require()

    @property
    def _packages(self) -> Layer:
        return layer("vllm", self.workspace, "cpu")  # it only sends requests

    def command(self, load: ToolLoad) -> Command:
        work = load.workload
        argv = [sys.executable, "-c", VLLM_BENCH, "--backend", "openai", "--base-url", load.url]
        argv += ["--endpoint", "/v1/completions", "--model", load.model, "--tokenizer", load.tokenizer]
        argv += ["--dataset-name", "custom", "--dataset-path", str(load.prompts), "--skip-chat-template"]
        argv += ["--disable-shuffle", "--custom-output-len", str(work.output_tokens), "--ignore-eos"]
        argv += ["--num-prompts", str(work.requests), "--num-warmups", str(work.warmup)]
        argv += ["--request-rate", f"{work.rate:g}"] if work.rate else ["--max-concurrency", str(load.concurrency)]
        argv += ["--goodput", *limits_in(work.slo, "ttft", "tpot").split()] if work.slo else []
        argv += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
        argv += ["--metric-percentiles", ",".join(map(str, PERCENTILES)), "--seed", str(work.seed)]
        argv += ["--save-result", "--result-dir", str(load.out), "--result-filename", "result.json", "--disable-tqdm"]
        return Command(argv, self._packages.environment)

    def read(self, load: ToolLoad) -> dict[str, Any]:
        document = self._document(load.out / "result.json")

        def figure(name: str, rate: bool) -> Any:
            if rate:
                return document[name]
            theirs = {"avg": "mean", **{key: key for key in statistics()[1:]}}
            return {key: document[f"{their}_{name}_ms"] for key, their in theirs.items()}

        try:
            self._refuse_failures(load.workload.requests - document["completed"], load)
            return self._renamed(load, figure)
        except KeyError as error:
            raise LabError(
                f"the result of {self.name} has no {error}", str(load.out), code="tool-result-incomplete"
            ) from error


class GuideLlm(Tool):
    """GuideLLM of the vLLM project, in an environment of its own, with PyTorch's CPU build."""

    name = "guidellm"
    prompt_keys = ("prompt", "output_tokens_count")
    names: ClassVar = {
        "TTFT": ("time_to_first_token_ms", "until the first chunk with text; the HTTP request is part of it"),
        "TPOT": ("inter_token_latency_ms", "the same: a mean of each request; its own TPOT has the first token in it"),
        "ITL": (ABSENT, "it keeps no single gaps"),
        "latency": ("request_latency", "until the last chunk, in seconds"),
        "tokens/s": ("output_tokens_per_second", "tokens are those of the answer's usage; a mean over time"),
        "requests/s": ("requests_per_second", "that end in its window; up to one a stream began before it"),
        "goodput/s": ("request_goodput", "its limits are on TTFT and TPOT under our names"),
    }

    def prepare(self, listener: Listener) -> None:
        self._packages.install(listener)

    @property
    def _packages(self) -> Environment:
        return Environment(self.name, self.workspace, with_torch=True)

    def lines(self, workload: Workload) -> str:
        """It leaves its first requests, and those that overlap with them, out of its figures."""
        return super().lines(replace(workload, requests=workload.warmup + workload.requests))

    def command(self, load: ToolLoad) -> Command:
        work = load.workload
        profile: dict[str, Any] = {"kind": "concurrent", "streams": [load.concurrency]}
        if work.rate:
            profile = {"kind": "poisson", "rate": [work.rate]}
        if work.warmup:
            profile["warmup"] = {"mode": "requests", "value": work.warmup}
        limits = {f"{name}_ms": limit for name, limit in vars(work.slo).items() if limit} if work.slo else None
        backend = {
            "target": load.url,
            "model": load.model,
            "request_format": "/v1/completions",
            "stream": load.streamed,
        }
        parts = {
            "backend": {"kind": "openai_http", **backend},
            "profile": profile,
            "constraint": {"kind": "max_requests", "count": work.warmup + work.requests},
            "tokenizer": {"kind": "huggingface_auto", "model": load.tokenizer},
            "data": {"kind": "json_file", "path": str(load.prompts)},
            "seed": {"kind": "static", "value": work.seed},
            "metrics": {"kind": "generative", "sample_size": 0, "slo": limits},
            "output": {"kind": "json", "path": str(load.out / "result.json")},
        }
        argv = [str(self._packages.python), "-m", "guidellm", "run", "--disable-console"]
        for name, part in parts.items():
            argv += [f"--{name}", json.dumps(part)]
        # One process sends, as one process of ours does: the server shares the machine.
        return Command(argv, {"GUIDELLM__MAX_WORKER_PROCESSES": "1"})

    def read(self, load: ToolLoad) -> dict[str, Any]:
        document = self._document(load.out / "result.json")

        def figure(name: str, rate: bool) -> Any:
            statistic = figures[name]["successful"]
            if rate:
                return statistic["mean"]
            scale = 1e3 if name == "request_latency" else 1.0
            values = {"avg": statistic["mean"], "std": statistic["std_dev"]}
            values |= {"min": statistic["min"], "max": statistic["max"], **statistic["percentiles"]}
            return {key: scale * value for key, value in values.items() if key in statistics("min", "max")}

        try:
            figures = document["benchmarks"][0]["metrics"]
            totals = figures["request_totals"]
            self._refuse_failures(totals["total"] - totals["successful"], load)
            return {**self._renamed(load, figure), "request_count": totals["successful"]}
        except (KeyError, IndexError) as error:
            raise LabError(
                f"the result of {self.name} has no {error}", str(load.out), code="tool-result-incomplete"
            ) from error


TOOLS: Mapping[str, type[Tool]] = {tool.name: tool for tool in (AIPerf, VllmBench, GuideLlm)}
