"""``labctl bench``: a running stack under load, measured by the field's names; no request is lost from the figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import stats
from labkit.clients import llm_api
from labkit.clients.ask import connection
from labkit.clients.base import InFlight
from labkit.clients.conversation import count_tokens
from labkit.clients.text_model import TextModel
from labkit.errors import LabError
from labkit.evidence import metrics
from labkit.records import RequestRecord
from labkit.stats import Slo
from labkit.workloads import dataset, load

PROMPTS = ("Programming in C++ is like", "I have lived in Seoul", "My favourite food is", "Once upon a time there was")


@dataclass(frozen=True)
class Workload:
    """What is sent. ``rate`` (requests/s, Poisson) makes an open loop; without it each concurrency is a closed loop.

    ``slo`` adds goodput; ``timeout`` (of a request) is in seconds.
    """

    prompts: Sequence[str] = PROMPTS
    output_tokens: int = 64
    requests: int = 32
    warmup: int = 4
    rate: float | None = None
    seed: int = 0
    slo: Slo | None = None
    timeout: float = 300.0


def prompts_from(path: Path) -> list[str]:
    """Prompts of a dataset: a JSON list of texts, or of {"input", "instruction"} as the identity test takes it.

    Raises:
        LabError: it is neither, or too large.
    """
    rows = dataset.read_rows(path, 'a JSON list of texts, or of {"input": ..., "instruction": ...}')
    try:
        return [row if isinstance(row, str) else f"{row['input']} {row['instruction']}" for row in rows]
    except (KeyError, TypeError) as error:
        raise LabError(
            f"{path} cannot be read as a dataset",
            f"{type(error).__name__}: {error}",
            'a JSON list of texts, or of {"input": ..., "instruction": ...}',
        ) from error


def run(
    endpoints: dict[str, str],
    model: str,
    workload: Workload,
    concurrency: int,
    progress: Callable[[str], None],
    tokenizer_dir: str = "",
) -> tuple[dict[str, Any], list[RequestRecord]]:
    """One measurement of one model.

    Args:
        tokenizer_dir: of the model, where the server does not name it.

    Returns:
        the metrics (with Triton's counters for the same time under "triton", and under "scheduler" what a model with
        a scheduler of its own counted), and every request.

    Raises:
        LabError: a request failed; nothing is averaged.
    """

    def ask(stream: InFlight, number: int) -> RequestRecord:
        prompt = workload.prompts[number % len(workload.prompts)]
        return asked.send(stream, prompt, workload.output_tokens, to_the_end=True)

    grpc = endpoints["grpc"]
    asked = TextModel.of(grpc, model)
    if workload.slo and (not asked.decoupled or asked.tells_end):
        raise LabError(
            "goodput can be measured only for a model that answers token by token",
            f"a response of {model} may hold several tokens",
            "without --slo, or another model (-m)",
        )

    def tell(answered: int, count: int) -> None:
        progress(f"{answered} of {count} answered")

    def connect(endpoint: str) -> InFlight:
        return connection(asked, endpoint)

    def warming(answered: int, count: int) -> None:
        progress("warming up")

    warming(0, workload.warmup)
    if workload.warmup:
        few = min(concurrency, workload.warmup)
        load.closed_loop(grpc, few, workload.warmup, ask, workload.timeout, warming, connect)
    before = metrics.scrape(endpoints["metrics"])
    if workload.rate is None:
        records = load.closed_loop(grpc, concurrency, workload.requests, ask, workload.timeout, tell, connect)
    else:
        with connect(grpc) as stream:
            arrivals = load.poisson(workload.requests, workload.rate, workload.seed)
            records = load.open_loop(arrivals, lambda number: ask(stream, number), tell)
            stream.wait(*records, timeout=workload.timeout, tell=tell)
    if asked.tells_end:  # it may have made fewer than were asked for, and a response may be several
        for record in records:
            llm_api.count_tokens(
                record, workload.output_tokens, lambda text: count_tokens(text, tokenizer_dir or asked.tokenizer_dir)
            )
    result = stats.metrics(records, workload.slo)
    delta = _settled(endpoints["metrics"], model, before)
    own = delta.histograms.get((model, f"{metrics.OWN}batch_size"))
    if own and own.count:
        result["scheduler"] = {"mean_batch": own.mean}
    if counted := delta.models.get(model):
        result["triton"] = {
            "nv_inference_count": counted.inferences,
            "nv_inference_exec_count": counted.exec_count,
            "mean_batch": counted.mean_batch,
        }
    return result, records


def tabulate(measured: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of measurements, each by the title of its load; all but the first column are numbers.

    "-" stands where a run has no value: an answer that comes whole has no first token.
    """
    good = any("goodput" in one for one in measured.values())
    columns: dict[str, tuple[str, str, int]] = {
        "tokens/s": ("output_token_throughput", "", 0),
        "requests/s": ("request_throughput", "", 2),
        **({"goodput/s": ("goodput", "", 2)} if good else {}),
        "TTFT p50 ms": ("time_to_first_token", "p50", 0),
        "TTFT p99 ms": ("time_to_first_token", "p99", 0),
        "TPOT p50 ms": ("time_per_output_token", "p50", 1),
        "ITL p99 ms": ("inter_token_latency", "p99", 1),
        "latency p99 ms": ("request_latency", "p99", 0),
    }

    def number(one: Mapping[str, Any], name: str, statistic: str, digits: int) -> str:
        if name not in one:
            return "-"
        return f"{one[name][statistic] if statistic else one[name]:.{digits}f}"

    rows = [
        [
            title,
            *(number(one, *column) for column in columns.values()),
            number(one, "scheduler" if "scheduler" in one else "triton", "mean_batch", 1),
        ]
        for title, one in measured.items()
    ]
    return ["load", *columns, "mean batch"], rows


def _settled(endpoint: str, model: str, before: metrics.Snapshot) -> metrics.Snapshot:
    """The counters' change once nothing is pending: Triton counts a request a moment after its last response."""
    deadline = time.monotonic() + 1.0
    while True:
        delta = metrics.scrape(endpoint).since(before)
        row = delta.models.get(model)
        if row is None or not row.pending or time.monotonic() > deadline:
            return delta
        time.sleep(0.05)
