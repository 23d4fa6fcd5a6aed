"""``labctl bench``: a stack up, its model under each load in turn, and down again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.labs.run import results_folder
from labctl.labs.servers import as_it_runs, ephemeral
from labctl.manifest.schema import Lab
from labctl.runtimes.actions import Action
from labctl.runtimes.record import UpOptions
from labctl.stack import edits, faults, running
from labctl.stack.session import Session
from labctl.stack.up import death
from labctl.triton import server_api
from labkit import results
from labkit.clients.text_model import TextModel
from labkit.errors import LabError
from labkit.workloads import bench as workloads


@dataclass(frozen=True)
class BenchResult:
    """A measurement.

    Attributes:
        metrics: of each load, by its title.
        scheduling: the model's, as :class:`TextModel` has it.
        edited: files that were not as shipped.
    """

    folder: Path
    metrics: Mapping[str, Mapping[str, Any]]
    scheduling: str = ""
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
    options = as_it_runs(session, stack, options)
    loads = [(f"{rate:g}/s", 1)] if rate else [(f"{number} in flight", number) for number in concurrency]
    with results_folder(session, lab) as out, ephemeral(session, lab, stack, options) as handle:
        if session.todo is not None:
            session.do(Action(f"requests to {model}", lambda listener: None, files=[f"{out}/"]))
            return BenchResult(out, {})
        record = handle.record.only(replica) if replica else handle.record
        explain = running.explainer(handle)

        def progress(text: str) -> None:
            """Show how far it is; an execution that does not come back ends the measurement."""
            listener.progress(text)
            running.refuse_stuck(session, record, explain)

        for title, number in loads:
            listener.step(f"{model}, {title}")
            try:
                metrics[title], one = workloads.run(
                    record.scrape_endpoints, model, workload, number, progress, record.tokenizer_dir
                )
            except LabError as error:
                raise death(session, stack) or faults.explained(error, explain) from error
            listener.done(f"{workload.requests} requests")
            records += one
        triton = server_api.server_version(record.endpoints.http)
        edited = edits.not_shipped(session, handle.plan)
        results.write_phase(out, "bench", metrics, records)
        scheduling = TextModel.of(record.scrape_endpoints["grpc"], model).scheduling
        settings = {**record.settings, "bench_model": model, "output_tokens": workload.output_tokens,
                    **({"scheduling": scheduling} if scheduling else {})}  # fmt: skip
        results.write_result(out, lab.folder, settings, metrics, triton, edited, runtime=handle.runtime.name)
    return BenchResult(out, metrics, scheduling, edited)
