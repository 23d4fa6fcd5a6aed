"""Labs 03 and 05: in-flight over static batching, Triton's cost, the engine over Hugging Face, a hundred at once."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import psutil

from labctl.labs import bench
from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labkit.client import dataset, identity
from labkit.client.ask import UnaryClient, kind_of, tensor, text_tensor
from labkit.evidence import steplog
from labkit.evidence.records import RequestRecord
from labkit.tables import format_table

LIMITS = (8, 16, 32)
MAIN_LIMIT = 16
AGAINST_ENGINE = (8, 16)  # where the engine alone is measured too
TIMEOUT_S = 600.0
COLUMNS = ("static req/s", "inflight req/s", "ratio", "steps ratio", "static served/alone", "inflight served/alone")
STACKS = {"static": "static-batching", "inflight": "inflight-batching"}


def batching(rounds: int) -> dict[str, Any]:
    """In-flight over static batching, at each limit; served over the engine alone.

    Both servers are up side by side and are measured in turn, since this machine's speed drifts. The published shape
    is measured at one limit, once: it takes minutes.
    """
    session = Session.open(Silent())
    rows, found = [], {}
    for limit in LIMITS:
        servers = [server(session, stack, max_num_sequences=limit) for stack in STACKS.values()]
        with servers[0] as static, servers[1] as inflight:
            for name, items in workloads(static).items():
                if name == "published" and limit != MAIN_LIMIT:
                    continue
                seen = [
                    compared(session, (static, inflight), items, limit, f"{name} {limit}")
                    for _ in range(rounds if name == "chat" else 1)
                ]
                medians = {key: statistics.median(one[key] for one in seen) for key in seen[0]}
                found[f"{name} {limit}"] = {"medians": medians, "rounds": seen}
                rows.append((name, limit, *(f"{medians[key]:.2f}" if key in medians else "" for key in COLUMNS)))
    print(format_table(rows, ("workload", "limit", *COLUMNS), right=range(1, 2 + len(COLUMNS))))
    return found


def compared(
    session: Session, handles: tuple[RunningStack, RunningStack], items: list[dataset.Item], limit: int, title: str
) -> dict[str, float]:
    """One round: the workload through each server's ensemble; for AGAINST_ENGINE also against the engine alone."""
    found: dict[str, float] = {}
    steps = []
    for kind, handle in zip(STACKS, handles, strict=True):
        records = through_ensemble(handle.record.endpoints.grpc, items)
        found[f"{kind} req/s"] = identity.identity_metrics(records)["Requests/Sec"]
        run_dir = session.workspace.folder(handle.record.stack).run_dir()
        steps.append(len(steplog.read_step_log(run_dir, "tensorrt_llm", since=records[0].start)))
    found["ratio"] = found["inflight req/s"] / found["static req/s"]
    found["steps ratio"] = steps[0] / steps[1]
    if limit in AGAINST_ENGINE:
        for kind, handle in zip(STACKS, handles, strict=True):
            found[f"{kind} served/alone"] = served_over_alone(session, handle, items)
    print(f"  {title}: " + ", ".join(f"{key} {value:.2f}" for key, value in found.items()), flush=True)
    return found


def through_ensemble(endpoint: str, items: list[dataset.Item]) -> list[RequestRecord]:
    """All at once as text, from preprocessing to postprocessing; each answer is as long as was asked for."""
    kind = kind_of(endpoint, "ensemble", "max_tokens")
    with UnaryClient(endpoint) as client:
        for chosen in (items[: identity.WARMUP], items):
            records = [
                client.send_inputs(
                    "ensemble",
                    item.prompt,
                    [
                        text_tensor("text_input", item.prompt),
                        tensor("max_tokens", item.output_tokens, kind),
                        text_tensor("bad_words", ""),
                        text_tensor("stop_words", ""),
                    ],
                    tokens=item.output_tokens,
                )
                for item in chosen
            ]
            client.wait(*records, timeout=TIMEOUT_S)
    return records


def served_over_alone(session: Session, handle: RunningStack, items: list[dataset.Item]) -> float:
    """The workload through the server, then by its engine alone (the idle servers stay up): work per second."""
    lab, name = session.catalog.stack(handle.record.stack)
    work = bench.OverheadWork(handle, bench.engine_of(lab, name, "cpu"), lambda count: items)
    through, _ = work.served()
    return work.alone().seconds / through.seconds


def hundred(rounds: int) -> dict[str, Any]:
    """A hundred requests at once, ten times in a row: no error, and memory and /dev/shm as they were."""
    session = Session.open(Silent())
    with server(session, STACKS["inflight"]) as handle:
        requests = identity.encode(workloads(handle)["chat"], encoder(handle), 1900)
        requests = [*requests, *requests][:100]
        used, shared = [], []
        for _ in range(max(10, rounds)):
            identity.run_identity_test(handle.record.endpoints.grpc, requests, warmup=0)
            used.append(engine_memory() / 2**20)
            shared.append(psutil.disk_usage("/dev/shm").used / 2**20)
    print(f"memory of the engine's process, MiB: {', '.join(f'{value:.0f}' for value in used)}")
    print(f"/dev/shm, MiB: {', '.join(f'{value:.1f}' for value in shared)}")
    return {"memory_mib": used, "shm_mib": shared}


def server(session: Session, stack: str, **settings: Any) -> Any:
    lab, name = session.catalog.stack(stack)
    return ephemeral_stack(session, lab, name, Options(set=settings, runtime="local", ports="auto", timeout=300.0))


def workloads(handle: RunningStack) -> dict[str, list[dataset.Item]]:
    ids_of = encoder(handle)

    def count(text: str) -> int:
        return len(ids_of(text))

    return {"chat": dataset.make_chats(count), "published": dataset.make_articles(count)}


def encoder(handle: RunningStack) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{handle.record.tokenizer_dir}/tokenizer.json")
    return lambda text: list(tokenizer.encode(text).ids)


def engine_memory() -> int:
    """Bytes of the stub processes that run tensorrt_llm."""
    stubs = (p for p in psutil.process_iter(["cmdline"]) if "tensorrt_llm" in " ".join(p.info["cmdline"] or ()))
    return sum(p.memory_info().rss for p in stubs)
