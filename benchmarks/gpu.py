"""``make bench ARGS=gpu``: all that one NVIDIA GPU can tell about these labs, in ten minutes and without a network.

The most important part comes first, each has its own limit of time, and each result is written as it comes. Without a
GPU the same is done on the CPU with a small model: a rehearsal, whose seconds mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from labbuild import random_weights
from labctl import repository
from labctl.lab import Lab, LabSettings, Place, Served
from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes import nvidia
from labctl.runtimes.layers import layer
from labctl.stack.session import Session
from labctl.unfinished import replace_dir
from labkit.client import dataset, identity
from labkit.errors import LabError
from labkit.evidence import steplog
from labkit.evidence.results import describe_machine, installed_versions
from labkit.tables import format_table
from labserve.model_shape import ModelShape
from labserve.vllm.settings import VllmSettings

# Seconds that each part may take, the most important first.
LIMITS = {
    "yardstick": 240,
    "beside": 130,
    "quick": 130,
    "wide-batches": 100,
    "predict": 70,
    "pace": 20,
    "batching": 140,
    "recorder": 60,
}
PARTS = tuple(LIMITS)
STACK, MODEL = "inflight-batching", "tensorrt_llm"
SIDES = ("served", "alone", "served", "alone")  # in turn: each begins with a new engine
RUNNING = (64, 256)  # requests that decode at once, with and without the recorder
REHEARSED = (4, 8)
LEAST_S = 20.0  # a part with less time than this is left out
TAIL = 40  # lines of a command that failed
# Beside model.py: vLLM's own scheduler, whose limit on the batch a file sets while nothing runs.
SCHEDULER = '''"""vLLM's scheduler with a limit on its batch that {knob} sets."""
import os
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
class Scheduler(AsyncScheduler):
    def schedule(self, *args, **named):
        if not self.running and os.path.exists({knob!r}):
            # vLLM 0.26 has one limit; newer releases limit running requests and the model's slots separately.
            name = "max_num_active_reqs" if hasattr(self, "max_num_active_reqs") else "max_num_running_reqs"
            setattr(self, name, int(open({knob!r}).read()))
        return super().schedule(*args, **named)
'''


@dataclass(frozen=True)
class Size:
    """The measured values, and the machine."""

    profile: str
    shape: str
    requests: int
    scale: float  # of the published prompts' length
    limits: Sequence[int]
    kv_mib: int
    labs: Sequence[str]  # options of `labctl run`
    running: Sequence[int]  # of the part `recorder`

    @property
    def turns(self) -> Sequence[int]:
        """The limits in the order in which an engine is asked: the short ones twice."""
        return (*self.limits, *self.limits[1:])


# A cache for 98 of the published requests at once is 43 GB, beside weights of 13.5 GB.
CARD = Size("gpu", "llama-2-7b", 98, 1.0, (8, 64, 98), 46 * 1024, (), RUNNING)
REHEARSAL = Size("cpu", "tiny-llama", 24, 0.05, (4, 12, 24), 64, ("--quick",), REHEARSED)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", type=float, default=600.0, help="gpu: seconds for all of it")
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="gpu: where results are written")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Raises LabError: vLLM's layer is not installed."""
    try:
        size, gpu = CARD, nvidia.gpus()[0].name
    except LabError:
        size, gpu = REHEARSAL, "none: a rehearsal on the CPU"
    bench = Bench(size, asked.out, time.monotonic() + asked.budget)
    bench.tell("machine", gpu=gpu, size=vars(size), machine=describe_machine(), versions=installed_versions())
    for part in asked.part or PARTS:
        left = bench.left(bench.limit(part))
        if left < LEAST_S:
            bench.tell(part, skipped=f"{left:.0f} s are left")
            continue
        began = time.monotonic()
        try:
            with limited(left):
                bench.measure(part)
        except Exception as error:  # the next part may work
            bench.tell(part, error=f"{type(error).__name__}: {error}", why=getattr(error, "why", ""))
        bench.tell(part, took_s=time.monotonic() - began)
    bench.show()
    return {"rows": bench.rows}


class Bench:
    def __init__(self, size: Size, out: Path, end: float) -> None:
        self.size, self.end, self.rows, self.out = size, end, list[dict[str, Any]](), out.absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        self.session = Session.open(Silent())
        self.layer = layer("vllm", self.session.workspace)
        self.layer.require()
        workspace = self.session.workspace
        self.folder = workspace.cache / "gpu" / size.shape if size is CARD else workspace.models / size.shape
        self.knob = self.out / "limit"

    def limit(self, part: str) -> float:
        """Seconds that a part may take: a rehearsal has less than a card's machine."""
        return LIMITS[part] * (1 if self.size is CARD else 5)

    def left(self, most: float) -> float:
        """Seconds that a part may take."""
        return min(most, self.end - time.monotonic())

    def tell(self, part: str, **values: Any) -> None:
        row = {"part": part, "at": round(time.time(), 1), **values}
        self.rows.append(row)
        line = json.dumps(row, default=str)
        with (self.out / "gpu.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        print(line[:400], flush=True)

    def measure(self, part: str) -> None:
        if not self.folder.is_dir():
            self.weights()
        match part:
            case "yardstick":
                self.yardstick()
            case "beside":  # at once: their verdicts count steps, or are far from their bounds
                with contextlib.ExitStack() as stack:
                    stack.enter_context(self.running("step-cost", "benchmarks", "step-cost", "--rounds", "1"))
                    for name in ("vllm", "llama"):
                        stack.enter_context(self.lab(name, name))
            case "batching" | "quick":
                with self.lab("batching", part, *["--quick"] * (part == "quick")):
                    pass
            case "wide-batches":  # in flight, with more requests in a batch than the published test had
                with self.lab(STACK, part, "--set", f"max_num_sequences={self.size.limits[1]}"):
                    pass
            case "predict":
                limit = f"max_num_sequences={self.size.limits[0]}"
                self.of_recording(part, ["predict"], "--set", limit, "--run")
            case "pace":
                self.of_recording(part, ["pace", "measure"])
            case "recorder":
                self.recorder()

    def weights(self) -> None:
        """Random weights, drawn on the GPU: on a CPU those of Llama-2 7B take minutes."""
        began = time.monotonic()
        made = multiprocessing.get_context("spawn").Process(
            target=draw, args=(self.size.shape, self.folder, self.session.workspace.models)
        )
        made.start()
        made.join()
        if made.exitcode:
            raise LabError("the weights could not be made", f"exit status {made.exitcode}", code="weights-failed")
        self.tell("weights", seconds=time.monotonic() - began, shape=self.size.shape)

    # -- the published workload, through Triton and alone -------------------------------------------------------------

    def yardstick(self) -> None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))

        def ids_of(text: str) -> list[int]:
            return list(tokenizer.encode(text).ids)

        items = dataset.make_articles(lambda text: len(ids_of(text)), self.size.requests, scale=self.size.scale)
        requests = identity.encode(items, ids_of, 1900)
        began = time.monotonic()
        for number, side in enumerate(SIDES):
            took = time.monotonic() - began
            if number > 1 and took * (number + 1) / number > self.limit("yardstick"):
                return  # another one would not end in time
            if side == "served":
                self.served(requests)
            else:
                self.alone(requests)

    def choices(self) -> dict[str, Any]:
        """The settings of both sides."""
        return {
            "model": str(self.folder),
            "engine": "vllm",
            "max_num_sequences": max(self.size.limits),
            "kv_cache_memory_mib": self.size.kv_mib,
            "kv_cache_free_gpu_mem_fraction": 1.0,
            "enable_chunked_context": True,  # as vLLM does by itself
            "async_scheduling": True,
        }

    def served(self, requests: Sequence[identity.Ids]) -> None:
        lab, _ = self.session.catalog.stack(STACK)
        chosen = Options(profile=self.size.profile, set=self.choices())
        began = time.monotonic()
        with ephemeral_stack(
            self.session,
            self.with_knob(lab, chosen),
            STACK,
            replace(chosen, runtime="local", ports="auto", timeout=240.0),
        ) as handle:
            self.tell("yardstick", what="up", seconds=time.monotonic() - began)
            run_dir = self.session.workspace.folder(STACK).run_dir()
            for limit in self.size.turns:
                self.knob.write_text(str(limit), encoding="utf-8")
                began = time.monotonic()
                records = identity.run_identity_test(handle.record.endpoints.grpc, requests)
                first, over = min(r.start for r in records), max(r.end for r in records)
                names = {record.id for record in records}
                steps = [s for s in steplog.read_step_log(run_dir, MODEL, since=first) if names & set(s.ids)]
                figures = identity.identity_metrics(records)
                self.tell(
                    "yardstick",
                    what="served",
                    limit=limit,
                    seconds=over - first,
                    mean_s=figures["Avg. latency (ms)"] / 1e3,
                    table=figures,
                    steps=len(steps),
                    in_vain=sum(step.in_vain for step in steps),
                    sending_s=max(r.start for r in records) - first,
                    first_step_s=steps[0].over - first if steps else None,
                    last_answer_s=over - steps[-1].over if steps else None,
                    batches=[step.batch for step in steps],
                    step_ms=[round(1e3 * (b.over - a.over), 2) for a, b in itertools.pairwise(steps)],
                    took_s=time.monotonic() - began,
                )
            for log in sorted(run_dir.glob(f"steps-{MODEL}-*.jsonl")):
                shutil.copyfile(log, self.out / log.name)

    def with_knob(self, lab: Lab, chosen: Options) -> Lab:
        """The lab with the scheduler above laid over its templates."""
        workspace = self.session.workspace
        request = make_plan(workspace, lab, STACK, chosen).request
        overlay = self.out / "overlay"
        with replace_dir(overlay) as fresh:
            for place, origin in repository.origins(request).items():
                if place.startswith(f"{MODEL}/"):
                    (fresh / place).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(origin, fresh / place)
            (fresh / MODEL / "1" / "scheduler.py").write_text(SCHEDULER.format(knob=str(self.knob)), encoding="utf-8")
        stack = lab.stacks[STACK]

        def serve(settings: LabSettings, at: Place) -> Served:
            served = stack.serve(settings, at)
            return replace(served, repository=[*served.repository, str(overlay)])

        return replace(lab, serves=[replace(stack, serve=serve)])

    def arguments(self, limit: int) -> dict[str, Any]:
        """vLLM's arguments on the side without Triton: the same, and what vLLM does by itself."""
        chosen = self.choices()
        words = {
            "gpt_model_path": chosen["model"],
            "max_num_sequences": str(limit),
            "kv_cache_memory_mib": str(chosen["kv_cache_memory_mib"]),
            "kv_cache_free_gpu_mem_fraction": "1.0",
            "execution": "graphs" if self.size.profile == "gpu" else "eager",
        }
        device = "cuda:0" if self.size.profile == "gpu" else "cpu"
        arguments = VllmSettings.of(lambda name: words.get(name, ""), ModelShape.of(chosen["model"]), device).arguments
        for name in ("async_scheduling", "structured_outputs_config"):
            del arguments[name]
        return arguments

    def alone(self, requests: Sequence[identity.Ids]) -> None:
        asked = {
            "arguments": self.arguments(max(self.size.limits)),
            "requests": [(request.prompt, request.output_tokens) for request in requests],
            "limits": self.size.turns,
        }
        self.engine("yardstick", asked)

    def recorder(self) -> None:
        """What the recorder of labsched.vllm costs vLLM alone while many requests decode, in turn without and with."""
        asked = {"arguments": self.arguments(max(self.size.running)), "running": self.size.running}
        self.engine("recorder", asked)

    def engine(self, part: str, asked: dict[str, Any]) -> None:
        """vLLM without Triton, in a process of its own: each line that it says is a row."""
        lab, _ = self.session.catalog.stack(STACK)
        options = Options(profile=self.size.profile, set=self.choices())
        plan = make_plan(self.session.workspace, lab, STACK, options)
        env = {**os.environ, **plan.server_env, **self.layer.environment}  # the served side's threads
        env["LABS_RECORD"] = str(self.out / "recorded")
        env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(self.session.workspace.root / "src")])
        with (self.out / "alone.log").open("a", encoding="utf-8") as log:
            began = time.monotonic()
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu_alone"],
                cwd=self.session.workspace.root,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            with ended(child):
                assert child.stdin and child.stdout
                child.stdin.write(json.dumps(asked))
                child.stdin.close()
                for line in child.stdout:
                    if line.startswith("{"):
                        self.tell(part, **json.loads(line), since_s=time.monotonic() - began)
            if child.returncode:
                raise LabError(
                    "vLLM alone failed",
                    (self.out / "alone.log").read_text(encoding="utf-8")[-2000:],
                    code="command-failed",
                )

    # -- labs ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lab(self, name: str, part: str, *more: str) -> Iterator[None]:
        """A lab with its verdicts, as a person runs it, which is over at the end of the block."""
        lab = self.session.catalog.lab(name)
        chosen = ["--profile", self.size.profile, "--runtime", "local", "--ports", "auto"]
        chosen += [word for word in self.size.labs if word not in more] + [*more]
        if lab.short == "batching" or (lab.short == "llama" and self.size.profile == "gpu"):
            chosen += ["--set", f"model={self.folder}", "--set", "engine=vllm"]
        said = self.out / f"{part}.json"
        said.unlink(missing_ok=True)
        base = self.session.workspace.results_dir(lab.folder)
        before = set(base.glob("*"))
        try:
            with self.running(part, "labctl", "run", name, *chosen, "--output", str(said)):
                yield
        finally:
            found = json.loads(said.read_text(encoding="utf-8")) if said.exists() else {}
            folder = next(iter(set(base.glob("*")) - before), None)
            self.tell(part, folder=folder, result=found)
            if folder and (folder / "report.md").is_file():
                shutil.copyfile(folder / "report.md", self.out / f"{part}.md")

    def of_recording(self, part: str, command: Sequence[str], *options: str) -> None:
        """The output of a labctl command on the recording of the wide batches."""
        folder = next((row["folder"] for row in self.rows if row["part"] == "wide-batches" and row.get("folder")), None)
        if not folder:
            raise LabError("there is no recording", "the part wide-batches did not end", code="recording-missing")
        with self.running(part, "labctl", *command, str(folder), "--phase", "inflight", *options):
            pass

    @contextlib.contextmanager
    def running(self, part: str, module: str, *words: str) -> Iterator[None]:
        """A command, `python -m module`, that is over at the end of the block. What it said is in PART.log."""
        log = self.out / f"{part}.log"
        began = time.monotonic()
        with log.open("w", encoding="utf-8") as file:
            child = spawn([sys.executable, "-m", module, *words], self.session.workspace.root, file)
            try:
                with ended(child):
                    yield
            finally:
                text = log.read_text(encoding="utf-8")
                if child.returncode:
                    print("\n".join(text.splitlines()[-TAIL:]), flush=True)
                self.tell(part, status=child.returncode, seconds=time.monotonic() - began, said=text[-3000:])

    def show(self) -> None:
        """The tables."""
        head = ("at most", "through Triton, req/s", "alone, req/s", "ratio", "steps", "steps alone")
        rows = []
        for limit in self.size.limits:
            sides = {side: self._of(side, limit) for side in ("served", "alone")}
            if all(sides.values()):
                best = {side: min(one["seconds"] for one in found) for side, found in sides.items()}
                rates = {side: self.size.requests / seconds for side, seconds in best.items()}
                steps = [str(found[-1]["steps"]) for found in sides.values()]
                ratio = rates["served"] / rates["alone"]
                rows.append((str(limit), *(f"{rates[side]:.2f}" for side in sides), f"{ratio:.3f}", *steps))
        print("\n" + format_table(rows, head, right=range(len(head))))
        for row in self.rows:
            if verdicts := row.get("result", {}).get("verdicts"):
                for one in verdicts:
                    print(f"{row['part']}: {one}")

    def _of(self, what: str, limit: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("what") == what and row.get("limit") == limit]


def draw(shape: str, folder: Path, models: Path) -> None:
    """In a process of its own, which gives the GPU back."""
    import torch

    torch.set_default_device("cuda")
    with replace_dir(folder) as fresh:
        random_weights.make_random_weights(shape, fresh, models, print)


def spawn(argv: Sequence[str], folder: Path, log: IO[str]) -> subprocess.Popen[Any]:
    return subprocess.Popen(argv, cwd=folder, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def ended(child: subprocess.Popen[Any]) -> Any:
    """Wait for a process at the end of a block; one that is not done when the block fails is interrupted."""
    try:
        yield child
        child.wait()
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # labctl takes its servers down
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()


@contextlib.contextmanager
def limited(seconds: float) -> Any:
    """Raises TimeoutError in a block that takes longer."""

    def strike(*_: object) -> None:
        raise TimeoutError(f"more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS)
    options(parser)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
