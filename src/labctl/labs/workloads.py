"""``labctl bench``: a running stack under load, measured by the field's names; no request is lost from the figures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.triton.conversation import connection, count_tokens
from labkit.client import dataset, load, metrics
from labkit.client.ask import InFlightClient
from labkit.client.text_model import TextModel, set_token_count
from labkit.errors import LabError
from labkit.evidence import results, stats
from labkit.evidence.records import RequestRecord
from labsched.log.settings import HASH_BYTES
from labsched.replay.recording import Arrival
from labsched.replay.slo import Slo

SETTLE_S = 1.0  # for Triton's counters, after the last response
PROMPTS = ("Programming in C++ is like", "I have lived in Seoul", "My favourite food is", "Once upon a time there was")


@dataclass(frozen=True)
class Workload:
    """A bench's load: an open loop with ``rate`` (requests/s, Poisson), else a closed loop for each concurrency.

    With ``trace`` its requests are sent at their own times, and ``prompts`` only to warm up. ``slo`` adds goodput,
    ``price`` (of the machine, for an hour) the cost of a million tokens; ``timeout`` (of a request) is in seconds.
    """

    prompts: Sequence[str] = PROMPTS
    output_tokens: int = 64
    requests: int = 32
    warmup: int = 4
    rate: float | None = None
    seed: int = 0
    slo: Slo | None = None
    timeout: float = 300.0
    trace: Sequence[Arrival] = ()
    price: float | None = None


def prompts_from(path: Path) -> list[str]:
    """Prompts of a dataset: a JSON list of texts, or of {"input", "instruction"} as the identity test takes it.

    Raises:
        LabError: it is neither, or too large.
    """
    form = 'a JSON list of texts, or of {"input": ..., "instruction": ...}'
    prompts = []
    for number, row in enumerate(dataset.read_rows(path, form), 1):
        if isinstance(row, str):
            prompts.append(dataset.require_unicode(path, f"row {number}", row, form))
            continue
        parts = [dataset.field_text(path, number, row, name, form) for name in ("input", "instruction")]
        prompts.append(" ".join(parts))
    return prompts


def measure_model(
    endpoints: Mapping[str, str],
    model: str,
    workload: Workload,
    concurrency: int,
    progress: Callable[[str], None],
    tokenizer_dir: str | None = None,
    foreign: bool = False,
) -> tuple[dict[str, Any], list[RequestRecord]]:
    """One measurement of one model.

    Args:
        endpoints: ``grpc``; and ``metrics``, without which nothing that Triton counts is in the result.
        tokenizer_dir: of the model, where the server does not name it.
        foreign: the server need not be ours. Ours send a response for each token, or as many tokens as they are asked
            for; of another's, tokens are counted with the tokenizer, and only responses where there is none.

    Returns:
        the metrics (with Triton's counters for the same time under "triton", under "scheduler" what a model with a
        scheduler of its own counted, and under "left_out" the requests of a trace that the model's context is too
        small for), and every request.

    Raises:
        LabError: a request failed; nothing is averaged.
    """

    def ask(stream: InFlightClient, number: int) -> RequestRecord:
        prompt = workload.prompts[number % len(workload.prompts)]
        return text_model.send(stream, prompt, workload.output_tokens, to_the_end=True)

    grpc = endpoints["grpc"]
    text_model = TextModel.of(grpc, model)
    folder = tokenizer_dir or text_model.tokenizer_dir
    several = foreign or text_model.tells_end  # a response may hold several tokens, or none
    countable = not several or count_tokens("the", folder) > 0
    if (workload.slo and not (text_model.decoupled and countable)) or (workload.price and not countable):
        why = "it answers whole" if countable else "its tokenizer is not known here"
        raise LabError(
            "goodput and cost can be measured only where tokens are counted, and goodput where they are streamed",
            f"a response of {model} may hold several tokens, and {why}",
            "without --slo and --price-per-hour, or another model (-m)",
            code="goodput-needs-tokens",
        )
    items = trace_items(workload.trace, folder) if workload.trace else []

    def tell(answered: int, count: int) -> None:
        progress(f"{answered} of {count} answered")

    def connect(endpoint: str) -> InFlightClient:
        return connection(text_model, endpoint)

    def warming(answered: int, count: int) -> None:
        progress("warming up")

    warming(0, workload.warmup)
    if workload.warmup:
        users = min(concurrency, workload.warmup)
        load.closed_loop(grpc, users, workload.warmup, ask, workload.timeout, warming, connect)
    counters = endpoints.get("metrics")
    before = metrics.scrape(counters) if counters else None
    if items:
        with connect(grpc) as stream:

            def replayed(number: int) -> RequestRecord:
                _, item = items[number]
                return text_model.send(stream, item.prompt, item.output_tokens, to_the_end=True, tenant=item.tenant)

            records = load.open_loop([at for at, _ in items], replayed, tell)
            stream.wait(*records, timeout=workload.timeout, tell=tell)
    elif workload.rate is None:
        records = load.closed_loop(grpc, concurrency, workload.requests, ask, workload.timeout, tell, connect)
    else:
        with connect(grpc) as stream:
            arrivals = load.poisson(workload.requests, workload.rate, workload.seed)
            records = load.open_loop(arrivals, lambda number: ask(stream, number), tell)
            stream.wait(*records, timeout=workload.timeout, tell=tell)
    if several:
        limits = [item.output_tokens for _, item in items] or [workload.output_tokens] * len(records)
        _count_responses(records, text_model, limits, folder if countable else None)
    for record in records:
        record.input_tokens = record.input_tokens or count_tokens(record.prompt, folder)
    result = stats.metrics(records, workload.slo, workload.price, countable)
    if workload.trace:
        result["left_out"] = len(workload.trace) - len(items)
    if before is None or counters is None:
        return result, records
    delta = metrics.scrape_when_idle(counters, SETTLE_S, model).since(before)
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


def _count_responses(
    records: Sequence[RequestRecord], model: TextModel, limits: Sequence[int], folder: str | None
) -> None:
    """Leave out responses without text, and set each answer's tokens, if a tokenizer in ``folder`` counts them."""
    for record, limit in zip(records, limits, strict=True):
        record.responses = [arrived for arrived in record.responses if arrived[1]] or record.responses[-1:]
        record.tokens = 0  # those that were asked for may not all have come
        if folder:
            set_token_count(record, model, limit, lambda text: count_tokens(text, folder))


def trace_items(trace: Sequence[Arrival], folder: str | None) -> list[tuple[float, dataset.Item]]:
    """A trace's requests as texts, with their times in seconds. Where two prompts' hashes agree, so do their texts.

    Each token becomes a word that is one token for the model after a space, drawn by the token's hash; the first, which
    has no space before it, is a letter. Requests that do not fit in the model's context are left out.

    Args:
        folder: with the model's tokenizer, and its config.json.

    Raises:
        LabError: there is no tokenizer, or no request fits.
    """
    words = [word for word in dataset.WORDS if count_tokens(f"the {word}", folder) == 1 + count_tokens("the", folder)]
    if not words:
        raise LabError(
            "a trace cannot be sent to this model",
            "its tokenizer is not known here, so no prompt of a given length can be made",
            "labctl bench STACK --dataset FILE",
            code="tokenizer-unknown",
        )
    context = _context(folder) if folder else None
    items = []
    for arrival in trace:
        if context and arrival.prompt + 1 + arrival.limit > context:
            continue
        rng = random.Random(arrival.name)
        hashes = [arrival.prefixes[at : at + HASH_BYTES] for at in range(0, len(arrival.prefixes), HASH_BYTES)]
        drawn = [words[int.from_bytes(token) % len(words)] for token in hashes[: arrival.prompt]]
        drawn += rng.choices(words, k=arrival.prompt - len(drawn))
        text = " ".join([drawn[0][0], *drawn[1:]])
        items.append((arrival.at, dataset.Item(text, arrival.limit, arrival.tenant)))
    if not items:
        raise LabError(
            "no request of the trace fits in the model's context",
            f"it sees {context:,} tokens",
            code="prompts-too-long",
        )
    return items


def _context(folder: str) -> int | None:
    """Return the tokens that the model sees; None if its config.json does not say."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text())
        return int(config.get("max_position_embeddings") or config.get("n_positions"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def cost_note(price: float) -> str:
    """The machine that a cost is true for."""
    machine = results.describe_machine()
    return f"Cost: at {price:g} an hour for this machine ({machine['cores']} cores, {machine['cpu']})."


def goodput_words(slo: Slo | None, measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The goodput, and each tenant's if requests have tenants."""
    if slo is None:
        return []
    sentences = [f"Goodput: requests per second within {slo}."]
    for title, figures in measured.items():
        if "goodput_by_class" in figures:
            rates = [f"{name} {rate:.2f}" for name, rate in sorted(figures["goodput_by_class"].items())]
            sentences.append(f"Goodput by tenant, {title}: {', '.join(rates)}.")
    return sentences


def tabulate(measured: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of measurements, each by the title of its load; all but the first column are numbers.

    "-" stands where a run has no value: an answer that comes whole has no first token.
    """
    good = any("goodput" in figures for figures in measured.values())
    priced = any("cost_per_million_tokens" in figures for figures in measured.values())
    counted = not any("response_throughput" in figures for figures in measured.values())
    columns: dict[str, tuple[str, str, int]] = {
        **({"tokens/s": ("output_token_throughput", "", 0)} if counted else {}),
        **({} if counted else {"responses/s": ("response_throughput", "", 1)}),
        "requests/s": ("request_throughput", "", 2),
        **({"goodput/s": ("goodput", "", 2)} if good else {}),
        **({"cost/M tokens": ("cost_per_million_tokens", "", 2)} if priced else {}),
        "TTFT p50 ms": ("time_to_first_token", "p50", 0),
        "TTFT p99 ms": ("time_to_first_token", "p99", 0),
        "TPOT p50 ms": ("time_per_output_token", "p50", 1),
        "ITL p99 ms": ("inter_token_latency", "p99", 1),
        "latency p99 ms": ("request_latency", "p99", 0),
    }

    def number(figures: Mapping[str, Any], name: str, statistic: str, digits: int) -> str:
        if name not in figures:
            return "-"
        value = figures[name][statistic] if statistic else figures[name]
        return f"{value:.{digits}f}"

    rows = [
        [
            title,
            *(number(figures, *column) for column in columns.values()),
            number(figures, "scheduler" if "scheduler" in figures else "triton", "mean_batch", 1),
        ]
        for title, figures in measured.items()
    ]
    return ["load", *columns, "mean batch"], rows
