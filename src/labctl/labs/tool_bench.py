"""``labctl bench --client``: a stack up, the OpenAI API before it, and another project's load tool against that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labctl.labs.bench import BenchLoad, BenchResult, explain_death, loads_of, write_bench_result
from labctl.labs.run import results_folder
from labctl.labs.servers import as_it_runs, ephemeral_stack
from labctl.labs.tool import Tool, ToolLoad, names_table
from labctl.manifest.schema import Lab
from labctl.options import Options
from labctl.runtimes import door, processes
from labctl.stack import edits, ports
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labkit.clients.text_model import TextModel
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.tables import markdown
from labkit.workloads import bench as workloads


def bench_with_tool(
    session: Session,
    lab: Lab,
    stack: str,
    options: Options,
    model: str,
    workload: workloads.Workload,
    concurrency: Sequence[int],
    tool: Tool,
) -> BenchResult:
    """Measure a model by ``tool`` at each concurrency, or at the workload's rate; the tool's own files stay beside it.

    Raises LabError: the tool cannot be had here, or it ended with an error; a request failed.
    """
    options = as_it_runs(session, stack, options)
    tool.prepare(session.listener)  # before a server is started for nothing
    metrics: dict[str, dict[str, Any]] = {}
    with results_folder(session, lab) as out, ephemeral_stack(session, lab, stack, options) as handle:
        with explain_death(handle), _door(session, handle) as address:
            for load in loads_of(workload, concurrency):
                folder = out / f"{tool.name}-{load.file_part}"
                tool_load = _tool_load(session, handle, model, workload, load, address, folder)
                session.listener.step(f"{model}, {load.title}, by {tool.name}")
                metrics[load.title] = _measure(session, tool, tool_load)
                session.listener.done(f"{workload.requests} requests")
        settings = {"bench_model": model, "client": tool.name, "output_tokens": workload.output_tokens}
        settings |= {"slo": str(workload.slo)} if workload.slo else {}
        edited = write_bench_result(out, handle, settings, metrics)
        tables = [workloads.tabulate(metrics), names_table(type(tool), bool(workload.slo))]
        parts = [
            f"# {model} of {stack} under the load of {tool.name}",
            *(markdown(rows, head) for head, rows in tables),
        ]
        atomic_write(out / "report.md", "\n\n".join(parts) + f"\n{edits.edits_section(edited)}")
    return BenchResult(out, metrics, edited=edited)


@contextlib.contextmanager
def _door(session: Session, stack: RunningStack) -> Iterator[str]:
    """Serve the OpenAI API for the time of a block, on a free port; yields its address without /v1."""
    (port,) = ports.free_ports(1)
    with door.door_server(session.workspace, stack.record, port, session.listener) as address:
        yield address.removesuffix("/v1")


def _tool_load(
    session: Session,
    stack: RunningStack,
    model: str,
    workload: workloads.Workload,
    load: BenchLoad,
    address: str,
    folder: Path,
) -> ToolLoad:
    """Raises LabError: the model's tokenizer is not known, or limits are given and it answers whole."""
    asked = TextModel.of(stack.record.scrape_endpoints["grpc"], model)
    tokenizer, streamed = stack.record.tokenizer_dir or asked.tokenizer_dir, asked.decoupled
    if not tokenizer:
        raise LabError(
            f"the tokenizer of {model} is not known here", "load tools count tokens with it", code="tokenizer-unknown"
        )
    if workload.slo and not streamed:
        raise LabError(
            "goodput can be measured only for a model that answers token by token",
            f"{model} answers whole",
            "without --slo, or another model (-m)",
            code="goodput-needs-tokens",
        )
    return ToolLoad(address, model, tokenizer, streamed, workload, load.concurrency, folder / "prompts.jsonl", folder)


def _measure(session: Session, tool: Tool, load: ToolLoad) -> dict[str, Any]:
    """The tool's run, and its figures by our names."""
    listener = session.listener
    load.out.mkdir(parents=True)
    atomic_write(load.prompts, tool.lines(load.workload))

    def progress(line: str) -> None:
        listener.progress(line.strip()[:72])

    failed = f"{tool.name} could not measure {load.model}"
    processes.run_to_end(tool.command(load), listener, failed, merged=True, on_line=progress, code="tool-failed")
    return tool.read(load)
