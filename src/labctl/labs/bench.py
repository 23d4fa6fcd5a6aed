"""``labctl bench``: a stack up, its model under each load in turn, and down again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from labctl.lab import BareEngine, Lab
from labctl.labs import overhead, workloads
from labctl.labs.run import describe_pace, pace_section, results_folder
from labctl.labs.servers import as_it_runs, ephemeral_stack
from labctl.listener import Listener
from labctl.options import Options
from labctl.runtimes.layers import layer
from labctl.stack import edits, faults
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.stack.status import death_of_stack
from labctl.triton import server_api
from labkit.client import dataset, metrics
from labkit.client.ask import TextStream
from labkit.client.text_model import TextModel
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence import results, steplog
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts
from labsched.markdown import markdown

ALONE = ("-m", "labserve.alone")
TIMEOUT_S = 600.0
SETTLE_S, LOOK_S = 30.0, 0.05
Items = Callable[[dataset.Count], Sequence[dataset.Item]]  # makes a workload with a function that counts tokens


class BenchLoad(NamedTuple):
    """One measurement of a workload: with so many requests in flight, or at the workload's own rate or times."""

    title: str
    concurrency: int

    @property
    def file_part(self) -> str:
        """The title as a part of a file's name."""
        return self.title.replace(" ", "-").replace("/", "-per-")


def loads_of(workload: workloads.Workload, concurrency: Sequence[int]) -> list[BenchLoad]:
    """The measurements of a workload, in order."""
    if workload.trace:
        return [BenchLoad("trace", 1)]
    if workload.rate:
        return [BenchLoad(f"{workload.rate:g}/s", 1)]
    return [BenchLoad(f"{number} in flight", number) for number in concurrency]


@dataclass(frozen=True)
class BenchResult:
    """A measurement: ``metrics`` by the title of each load, ``scheduling`` as :class:`TextModel` has it.

    ``edited``: files that were not as shipped; ``paced``: what to say of times that a model of a GPU made;
    ``comparison``: with the engine alone, where that was measured.
    """

    folder: Path
    metrics: Mapping[str, Mapping[str, Any]]
    scheduling: str | None = None
    edited: Sequence[str] = ()
    paced: str | None = None
    comparison: overhead.OverheadComparison | None = None


def chosen_model(lab: Lab, stack: str, model: str | None) -> str:
    """The model to ask: ``model``, or the one that the lab names. Raises LabError: the stack does not have it."""
    entry = lab.stacks[stack].bench
    if entry is None:
        raise LabError(
            f"{stack} has no text model that labctl bench can ask",
            "",
            f"labctl run {lab.short}",
            code="text-model-none",
        )
    model = model or entry.model
    if model not in lab.stacks[stack].models:
        raise LabError(
            f"{stack} has no model '{model}'", f"it has: {', '.join(lab.stacks[stack].models)}", code="model-unknown"
        )
    return model


def bench_stack(
    session: Session,
    lab: Lab,
    stack: str,
    options: Options,
    model: str,
    workload: workloads.Workload,
    concurrency: Sequence[int],
    replica: int | None = None,
    traced: str | None = None,
) -> BenchResult:
    """Measure a model (on ``replica`` alone) at each concurrency, or at the workload's own rate or times.

    ``traced``: which trace the workload has, and how fast. Raises LabError: a request failed; nothing is averaged.
    """
    metrics: dict[str, dict[str, Any]] = {}
    records: list[RequestRecord] = []
    listener = session.listener
    options = as_it_runs(session, stack, options)
    with results_folder(session, lab) as out, ephemeral_stack(session, lab, stack, options) as handle:
        measured = replace(handle, record=handle.record.only(replica)) if replica else handle
        record = measured.record
        context = {name: getattr(record, name) for name in ("stack", "profile", "runtime")}
        context["settings"] = dict(record.settings)

        def progress(text: str) -> None:
            """Show how far it is; an execution that does not come back ends the measurement."""
            listener.progress(text)
            faults.refuse_stuck(measured)

        for load in loads_of(workload, concurrency):
            listener.step(f"{model}, {load.title}")
            began = time.monotonic()
            with explain_death(measured):
                metrics[load.title], sent = workloads.measure_model(
                    record.scrape_endpoints, model, workload, load.concurrency, progress, record.tokenizer_dir
                )
            listener.done(f"{len(sent)} requests")
            records += sent
            steplog.keep_step_log(handle.folder.run_dir(), out / f"steps-{load.file_part}.jsonl", began, sent)
            atomic_write(out / f"context-{load.file_part}.json", json.dumps(context, indent=1))
        scheduling = TextModel.of(record.scrape_endpoints["grpc"], model).scheduling
        settings = {"bench_model": model, "scheduling": scheduling, "price_per_hour": workload.price}
        settings |= {"trace": traced} if traced else {"output_tokens": workload.output_tokens}
        settings |= {"slo": str(workload.slo)} if workload.slo else {}
        results.write_phase(out, "bench", metrics, records)
        edited = write_bench_result(out, measured, settings, metrics)
        limits = workloads.goodput_words(workload.slo, metrics)
        limits += [workloads.cost_note(workload.price)] if workload.price else []
        header, rows = workloads.tabulate(metrics)
        text = "\n\n".join([f"# {model} of {stack} under load", markdown(rows, header), *limits])
        atomic_write(out / "report.md", f"{text}\n{pace_section(out)}{edits.edits_section(edited)}")
    return BenchResult(out, metrics, scheduling, edited, describe_pace(out))


def bench_there(
    endpoints: Mapping[str, str],
    model: str,
    workload: workloads.Workload,
    concurrency: Sequence[int],
    listener: Listener,
) -> tuple[dict[str, dict[str, Any]], list[RequestRecord]]:
    """Measure a model of any server: the figures of :func:`workloads.measure_model` by the title of each load, and all
    requests.

    Raises LabError: a request failed; nothing is averaged.
    """
    metrics: dict[str, dict[str, Any]] = {}
    records: list[RequestRecord] = []
    for load in loads_of(workload, concurrency):
        listener.step(f"{model}, {load.title}")
        metrics[load.title], sent = workloads.measure_model(
            endpoints, model, workload, load.concurrency, listener.progress, foreign=True
        )
        listener.done(f"{len(sent)} requests")
        records += sent
    return metrics, records


@contextlib.contextmanager
def explain_death(stack: RunningStack) -> Iterator[None]:
    """Replace an error of a block by the server's death if it has died, else explain it by the learner's own files."""
    try:
        yield
    except LabError as error:
        explain = faults.stack_explainer(stack)
        raise death_of_stack(stack.session, stack.name) or faults.explain_error(error, explain) from error


def write_bench_result(
    out: Path, stack: RunningStack, settings: Mapping[str, Any], metrics: Mapping[str, Any]
) -> Sequence[str]:
    """Write ``result.json``. Returns the files that were not as shipped."""
    edited = edits.not_shipped(stack.session, stack.plan)
    triton = server_api.server_version(stack.record.endpoints.http)
    every = {**stack.record.settings, **{key: value for key, value in settings.items() if value}}
    results.write_result(out, stack.lab.folder, every, metrics, triton, edited, runtime=stack.runtime.name)
    return edited


def engine_of(lab: Lab, stack: str, profile: str, model: str | None = None) -> BareEngine:
    """The engine that runs without Triton. Raises LabError: there is none, or ``model`` is not the compared model."""
    bench = lab.stacks[stack].bench
    if bench is None or bench.engine is None:
        raise LabError(
            f"{stack} has no engine that runs without Triton",
            "",
            "labs 02, 03, 05 and 06 have one",
            code="engine-alone-none",
        )
    if model not in (None, bench.model):
        raise LabError(
            f"{model} is not compared with an engine",
            f"{stack} serves its engine by {bench.model}",
            code="engine-alone-other-model",
        )
    if profile == "gpu":
        raise LabError(
            "--against-engine is for the cpu profile",
            "TensorRT-LLM's engine runs only inside its backend",
            code="engine-alone-gpu",
        )
    return bench.engine


def against_engine(
    session: Session, lab: Lab, stack: str, options: Options, items: Items, rounds: int, model: str | None
) -> BenchResult:
    """Bring a stack up and measure, in turn, all requests sent to it at once, and the same given to its engine alone.

    Raises LabError: a request failed, or there is no such engine.
    """
    engine = engine_of(lab, stack, options.profile, model)
    through, bare = [], []
    records: list[RequestRecord] = []
    options = as_it_runs(session, stack, options)
    with results_folder(session, lab) as out, ephemeral_stack(session, lab, stack, options) as handle:
        work = OverheadWork(handle, engine, items)
        for number in range(1, rounds + 1):
            session.listener.step(f"round {number} of {rounds}")
            with explain_death(handle):
                account, answered = work.served(lambda *_: faults.refuse_stuck(handle))
            through.append(account)
            records += answered
            bare.append(work.alone())
            session.listener.done(f"served {through[-1].seconds:.2f} s, alone {bare[-1].seconds:.2f} s")
        comparison = overhead.OverheadComparison(through, bare)
        figures: dict[str, Any] = {"served_over_alone": comparison.ratio, "each_round": comparison.ratios}
        for way, mean in zip(("served", "alone"), comparison.means, strict=True):
            figures[way] = {**mean.parts, "seconds": mean.seconds, "steps": mean.steps, "step_ms": mean.step_ms}
        figures |= {"requests": len(records) // rounds, "rounds": rounds}
        results.write_phase(out, "against-engine", figures, records)
        edited = write_bench_result(out, handle, {"bench_model": work.model.name}, {"against_engine": figures})
    return BenchResult(out, {}, edited=edited, comparison=comparison)


class OverheadWork:
    """One workload, done through Triton and by the engine alone."""

    def __init__(self, stack: RunningStack, engine: BareEngine, items: Items) -> None:
        self._stack, self._endpoints, self._engine = stack, stack.record.endpoints, engine
        self._env = dict(stack.plan.served.env)
        if packages := stack.plan.served.packages:
            if stack.runtime.name != "local":
                why = "what runs there without Triton has the packages of the server image alone"
                raise LabError(
                    f"{packages} alone is not measured in containers",
                    why,
                    "--runtime local",
                    code="engine-alone-compose",
                )
            self._env |= layer(packages, stack.session.workspace, stack.record.profile).environment
        bench = stack.lab.stacks[stack.name].bench
        assert bench is not None
        self.model = TextModel.of(self._endpoints.grpc, bench.model)
        config = server_api.model_config(self._endpoints.http, engine.model)
        self._parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        order = server_api.models_on_the_way(self._endpoints.http, bench.model)
        place = order.index(engine.model)
        self._before, self._after = order[:place], order[place + 1 :]
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(f"{stack.record.tokenizer_dir}/tokenizer.json")
        self._items = list(items(lambda text: len(tokenizer.encode(text).ids)))
        self._requests = [(tokenizer.encode(item.prompt).ids, item.output_tokens) for item in self._items]

    def served(
        self, tell: Callable[[int, int], None] | None = None
    ) -> tuple[overhead.OverheadAccount, list[RequestRecord]]:
        """Send all requests at once, after a small one that warms up; ``tell`` is called while they are awaited."""
        grpc = self._endpoints.grpc
        with TextStream(grpc) as stream:
            first = self.model.send(stream, self._items[0].prompt, 2, to_the_end=True)
            stream.wait(first, timeout=TIMEOUT_S, tell=tell)
            before = metrics.scrape(self._endpoints.metrics)
            records = [
                self.model.send(stream, item.prompt, item.output_tokens, to_the_end=True) for item in self._items
            ]
            stream.wait(*records, timeout=TIMEOUT_S, tell=tell)
        began, ended = min(record.start for record in records), max(record.end for record in records)
        tokens = sum(item.output_tokens for item in self._items)
        for _ in attempts(SETTLE_S, LOOK_S):  # until all tokens are in the log
            steps = steplog.read_step_log(self._stack.folder.run_dir(), self._engine.model, began)
            if sum(sum(step.made) for step in steps) >= tokens:
                break
        for _ in attempts(SETTLE_S, LOOK_S):  # until Triton has counted every request
            counted = metrics.scrape(self._endpoints.metrics).since(before).models
            if not any(model.pending for model in counted.values()):
                break

        def spent(models: Sequence[str], what: str) -> float:
            """Seconds of one request in these models."""
            return sum(float(getattr(counted[name], what)) for name in models if name in counted) / 1e3

        queue = spent([*self._before, self._engine.model, *self._after], "queue_ms")
        pre, post = spent(self._before, "compute_ms"), spent(self._after, "compute_ms")
        return overhead.served_account(began, ended, steps, pre, queue, post), records

    def alone(self) -> overhead.OverheadAccount:
        """Have the same engine do it in a process of its own, in the serving environment, beside the idle server."""
        work = {"loop": self._engine.loop, "parameters": self._parameters, "env": self._env, "requests": self._requests}
        path = self._stack.session.workspace.cache / f"against-{os.getpid()}.json"  # a folder that containers see too
        atomic_write(path, json.dumps(work))
        try:
            answer = json.loads(self._stack.runtime.tool(self._stack.session.listener, [*ALONE, str(path)]))
        finally:
            path.unlink(missing_ok=True)
        return overhead.serverless_account(answer["seconds"], answer["steps"])
