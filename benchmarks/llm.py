"""Labs 03 and 05: in-flight over static batching, Triton's cost, the engine over Hugging Face, a hundred at once."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from labctl.measure import dataset, identity, steplog
from labctl.measure.tables import table
from labctl.orchestrator.plan import Choices, make_plan
from labctl.orchestrator.run import ephemeral
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import Up, UpOptions
from labctl.report import Silent

LIMITS = (8, 16, 32)
STACKS = {"static": "static-batching", "inflight": "inflight-batching"}


def batching(rounds: int) -> dict[str, Any]:
    """In-flight over static batching, at each limit, for both workloads; served over the engine alone."""
    session = Session.open(Silent())
    served: dict[tuple[str, int, str], list[float]] = {}
    steps: dict[tuple[str, int, str], int] = {}
    alone: dict[str, float] = {}
    for limit in LIMITS:
        for kind, stack in STACKS.items():
            with server(session, stack, max_num_sequences=limit) as handle:
                for name, requests in workloads(handle).items():
                    for _ in range(rounds if name == "chat" else 1):
                        records = identity.run(handle.record.endpoints.grpc, requests)
                        served.setdefault((name, limit, kind), []).append(identity.table(records)["Requests/Sec"])
                        found = steplog.read(session.workspace.run_dir(stack), "tensorrt_llm", since=records[0].start)
                        steps[name, limit, kind] = len(found)
                    if limit == 16:
                        alone.setdefault(f"{name} {kind}", engine_alone(session, stack, requests, limit, kind))
    rows, ratios = [], {}
    for name in ("chat", "published"):
        for limit in LIMITS:
            one, other = (statistics.median(served[name, limit, kind]) for kind in STACKS)
            fewer = steps[name, limit, "static"] / steps[name, limit, "inflight"]
            ratios[f"{name} {limit}"] = other / one
            rows.append((name, limit, f"{one:.2f}", f"{other:.2f}", f"{other / one:.2f}", f"{fewer:.2f}"))
    print(table(rows, ("workload", "limit", "V1 req/s", "in-flight req/s", "ratio", "steps ratio"), right=range(1, 6)))
    shares = {
        key: statistics.median(served[name, 16, kind]) / alone[key] for key in alone for name, kind in [key.split()]
    }
    for key, share in shares.items():
        print(f"{key}, limit 16: served {share:.3f} of the engine alone (limit: 0.95)")
    return {"inflight_over_static": ratios, "served_over_engine": shares}


def hundred(rounds: int) -> dict[str, Any]:
    """A hundred requests at once, ten times in a row: no error, and memory and /dev/shm as they were."""
    session = Session.open(Silent())
    with server(session, STACKS["inflight"]) as handle:
        requests = workloads(handle)["chat"]
        requests = [*requests, *requests][:100]
        used, shared = [], []
        for _ in range(max(10, rounds)):
            identity.run(handle.record.endpoints.grpc, requests, warmup=0)
            used.append(engine_memory() / 2**20)
            shared.append(psutil.disk_usage("/dev/shm").used / 2**20)
    print(f"memory of the engine's process, MiB: {', '.join(f'{value:.0f}' for value in used)}")
    print(f"/dev/shm, MiB: {', '.join(f'{value:.1f}' for value in shared)}")
    return {"memory_mib": used, "shm_mib": shared}


def server(session: Session, stack: str, **settings: Any) -> Any:
    lab, name = session.catalog.stack(stack)
    return ephemeral(session, lab, name, UpOptions(Choices(set=settings), "local", "auto", 300.0))


def workloads(handle: Up) -> dict[str, list[identity.Ids]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{handle.record.tokenizer_dir}/tokenizer.json")

    def ids_of(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    def count(text: str) -> int:
        return len(ids_of(text))

    made = {"chat": dataset.chat(count), "published": dataset.published(count)}
    return {name: identity.encode(items, ids_of, 1900) for name, items in made.items()}


def engine_alone(session: Session, stack: str, requests: list[identity.Ids], limit: int, kind: str) -> float:
    """Requests/s of the same engine and scheduler in a process of their own (the idle server stays up)."""
    lab, name = session.catalog.stack(stack)
    plan = make_plan(session.workspace, lab, name, Choices(), str)
    engine = next(step.path for step in plan.steps if step.name == "engine")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "workload.json"
        file.write_text(json.dumps([[request.prompt, request.output_tokens] for request in requests]))
        script = Path(__file__).with_name("llm_engine_loop.py")
        argv = [sys.executable, str(script), str(engine), str(file), "--limit", str(limit)]
        done = subprocess.run(
            [*argv, *(["--static"] if kind == "static" else [])], check=True, capture_output=True, text=True
        )
    return float(json.loads(done.stdout)["requests_per_second"])


def engine_memory() -> int:
    """Bytes of the stub processes that run tensorrt_llm."""
    stubs = (p for p in psutil.process_iter(["cmdline"]) if "tensorrt_llm" in " ".join(p.info["cmdline"] or ()))
    return sum(p.memory_info().rss for p in stubs)
