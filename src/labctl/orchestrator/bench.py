"""``labctl bench``: a stack up, its model under each load in turn, and down again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl import server_api
from labctl.errors import LabError
from labctl.manifest.schema import Lab
from labctl.measure import results
from labctl.measure.workloads import bench as workloads
from labctl.orchestrator import edits, faults, running
from labctl.orchestrator.run import new_results_folder
from labctl.orchestrator.servers import ends_at_once, ephemeral
from labctl.orchestrator.session import Session
from labctl.orchestrator.todo import Todo
from labctl.orchestrator.up import UpOptions, death, dry_up
from labctl.runtimes.actions import Action


@dataclass(frozen=True)
class BenchResult:
    """``found``: the metrics of each load, by its title. ``edited``: files that were not as shipped."""

    folder: Path
    metrics: Mapping[str, Mapping[str, Any]]
    edited: Sequence[str] = ()


def chosen_model(lab: Lab, stack: str, model: str) -> str:
    """The model to be asked, ``model`` or the one that the lab names. Raises LabError where the stack has none such."""
    entry = lab.stacks[stack].bench
    if entry is None:
        raise LabError(f"{stack} has no text model that labctl bench can ask", "", f"labctl run {lab.short}")
    model = model or entry.model
    if model not in lab.stacks[stack].models:
        raise LabError(f"{stack} has no model '{model}'", f"it has: {', '.join(lab.stacks[stack].models)}")
    return model


def bench(
    session: Session, lab: Lab, stack: str, options: UpOptions, model: str, workload: workloads.Workload,
    concurrency: Sequence[int], replica: int | None = None,
) -> BenchResult:  # fmt: skip
    """Measure a model at each concurrency, or at the workload's own rate where it has one.

    Args:
        replica: ask this server alone.

    Raises:
        LabError: a request failed; nothing is averaged.
    """
    metrics: dict[str, dict[str, Any]] = {}
    records = []
    listener = session.listener
    rate = workload.rate
    loads = [(f"{rate:g}/s", 1)] if rate else [(f"{number} in flight", number) for number in concurrency]
    with ephemeral(session, lab, stack, options) as handle:
        record = handle.record.only(replica) if replica else handle.record
        explain = running.explainer(session, lab, handle.runtime, record)
        for title, number in loads:
            listener.step(f"{model}, {title}")
            try:
                with running.watched(session, stack, explain):
                    metrics[title], one = workloads.run(record.asked, model, workload, number, listener.progress)
            except LabError as error:
                raise death(session, stack) or faults.explained(error, explain) from error
            listener.done(f"{workload.requests} requests")
            records += one
        triton = server_api.server_version(record.endpoints.http)
        edited = edits.not_shipped(session, running.plan_of(session, lab, handle.runtime, record))
    out = new_results_folder(session, lab)
    results.write_phase(out, "bench", metrics, records)
    settings = {**record.settings, "bench_model": model, "output_tokens": workload.output_tokens}
    results.write_result(out, lab.folder, settings, metrics, triton, edited)
    return BenchResult(out, metrics, edited)


def dry_bench(session: Session, lab: Lab, stack: str, options: UpOptions, model: str) -> Todo:
    """What :func:`bench` would do: the stack up, requests from this very process, and down again."""
    todo = dry_up(session, lab, stack, options)
    out = session.workspace.results_dir(lab.folder) / "TIME"
    measure: Action[str] = Action(f"requests to {model}", lambda listener: "", files=[f"{out}/"])
    todo.actions += [measure, session.runtime(todo.runtime).stop(stack, ends_at_once(todo.profile))]
    return todo
