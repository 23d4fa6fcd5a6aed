"""``make bench ARGS=gpu``: what one NVIDIA GPU can tell about vLLM behind these labs, in at most 13 minutes, offline.

Each part has its own limit of time, a part that fails does not stop the next one, and each result is written as it
comes (``gpu.jsonl``). All weights are random and drawn here. Without a GPU the same is done on the CPU with a small
model: a rehearsal, whose seconds mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks import outside_triton  # noqa: F401
from labbuild import random_weights
from labctl import repository
from labctl.artifacts import weights
from labctl.doctor.gpu_memory import MemoryShape, memory_parts
from labctl.lab import Lab, LabSettings, Place, Served
from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes import groups, nvidia
from labctl.runtimes.layers import layer
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labkit.client import dataset, identity
from labkit.client.trtllm import EngineStream
from labkit.disk import replace_dir
from labkit.errors import LabError
from labkit.evidence import steplog
from labkit.evidence.results import describe_machine, installed_versions
from labkit.tables import format_table
from labserve.model_shape import ModelShape
from labserve.vllm.settings import VllmSettings

# Seconds that each part may take, in the order of the parts.
LIMITS = {
    "start": 80,  # vLLM starts and answers; memory while it is up, and after `down`
    "killed": 90,  # the process of the model ends by SIGKILL
    "faults": 90,  # out of memory in a step, then a fault of the device
    "load": 45,  # out of memory while it loads
    "schedulers": 110,  # lab 08, and its memory beside doctor's
    "workload": 290,  # the published one, through Triton beside vLLM alone
    "compiler": 50,  # none is there
    "modes": 110,  # how steps are launched; a cache in fp8
    "library": 50,  # of the driver, by LD_LIBRARY_PATH
}
PARTS = tuple(LIMITS)
BUDGET_S = 13 * 60
STACK, MODEL = "inflight-batching", "tensorrt_llm"
LAB_08 = "two-schedulers"
SIDES = ("served", "alone", "served", "alone")  # in turn: each begins with a new engine
LEAST_S = 20.0  # a part with less time than this is left out
TOLD = 2000  # characters of what a command said
STATE_S = 30.0  # until a fault is seen
TOO_MUCH_MIB = 1_000_000  # of a KV cache: more than any machine has
COMPILERS = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+)(-[\d.]+)?")
COLUMNS = (  # of the table at the end: the names of a value, the first that a row has counts
    ("part",),
    ("command", "fault", "named"),
    ("took_s", "seconds"),
    ("taken_gb", "memory_gb"),
    ("error", "state", "verdicts", "loaded", "skipped", "doctor_gb", "said", "tokens", "status"),
)
CACHES = ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR")  # of what a compiler made
# Beside model.py: vLLM's own scheduler, which does in a step what a file says: a limit on the batch, set while nothing
# runs, or a fault of the device.
SCHEDULER = '''"""vLLM's scheduler, which does in a step what {knob} says."""
import os
import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
CUDA = torch.cuda.is_available()
class Scheduler(AsyncScheduler):
    def schedule(self, *args, **named):
        asked = open({knob!r}).read() if os.path.exists({knob!r}) else ""
        if asked.isdecimal() and not self.running:
            # vLLM 0.26 has one limit; newer releases limit running requests and the model's slots separately.
            name = "max_num_active_reqs" if hasattr(self, "max_num_active_reqs") else "max_num_running_reqs"
            setattr(self, name, int(asked))
        if asked == "memory":
            taken = []
            while CUDA:
                taken.append(torch.empty(2**28, dtype=torch.uint8, device="cuda"))
            raise torch.OutOfMemoryError("CUDA out of memory (rehearsed)")
        if asked == "fault":
            if not CUDA:
                raise RuntimeError("CUDA error: a fault of the device (rehearsed)")
            torch.zeros(1, device="cuda")[torch.tensor([2**20], device="cuda")]
            torch.cuda.synchronize()
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
    small: str  # the model of the parts that are not about speed

    @property
    def turns(self) -> Sequence[int]:
        """The limits in the order in which an engine is asked: the short ones twice."""
        return (*self.limits, *self.limits[1:])


# A cache for 98 of the published requests at once is 43 GB, beside weights of 13.5 GB.
CARD = Size("gpu", "llama-2-7b", 98, 1.0, (8, 64, 98), 46 * 1024, "random:llama-100m")
REHEARSAL = Size("cpu", "tiny-llama", 24, 0.05, (4, 12, 24), 64, "shipped:tiny-llama")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="gpu: seconds for all of it")
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
        bench.labctl(part, "down", STACK)  # harmless where it is down
        bench.tell(part, took_s=time.monotonic() - began, memory_gb=bench.memory_gb())
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
        match part:
            case "start":
                self.start()
            case "killed":
                self.killed()
            case "faults":
                self.faults()
            case "load":
                self.up(part, "--set", f"kv_cache_memory_mib={TOO_MUCH_MIB}")
            case "schedulers":
                self.schedulers()
            case "workload":
                self.workload()
            case "compiler":
                self.compiler()
            case "modes":
                self.modes()
            case "library":
                self.library()

    # -- one server, by the commands that a person types --------------------------------------------------------------

    def labctl(
        self, part: str, *words: str, env: Mapping[str, str] | None = None, more: Sequence[str] = ()
    ) -> tuple[int, str]:
        """The exit status of a labctl command, and what it said: a row, and PART.log has all of it.

        Args:
            more: options of the command, which the row names.
        """
        log, began = self.out / f"{part}.log", time.monotonic()
        with log.open("a+", encoding="utf-8") as file:
            start = file.tell()
            child = subprocess.Popen(
                [sys.executable, "-m", "labctl", *words, *more],
                cwd=self.session.workspace.root,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
            )
            try:
                with ended(child):
                    pass
            finally:
                file.seek(start)
                said = file.read()
                if words[0] != "status":
                    self.tell(
                        part,
                        command=" ".join([words[0], *more]),
                        status=child.returncode,
                        seconds=time.monotonic() - began,
                        memory_gb=self.memory_gb(),
                        said=said[said.find("error:") :][:TOLD] if child.returncode else "",
                    )
        return child.returncode, said

    def up(self, part: str, *more: str, env: Mapping[str, str] | None = None) -> bool:
        """Whether the small model is up, with these options, and answers."""
        chosen = ["--profile", self.size.profile, "--runtime", "local", "--ports", "auto", "--timeout", "240"]
        for name, value in {**self.small(), "async_scheduling": True}.items():
            chosen += ["--set", f"{name}={value}"]
        status, _ = self.labctl(part, "up", STACK, *chosen, env=env, more=more)
        return not status and self.answers(part)

    def small(self) -> dict[str, Any]:
        return {"model": self.size.small, "engine": "vllm"}

    def answers(self, part: str) -> bool:
        return not self.labctl(part, "infer", STACK, "-m", "ensemble", "-p", "Once upon a time", "-o", "8")[0]

    def state(self, part: str, *good: str) -> None:
        """Ask for the state until it is one of these, or half a minute is over."""
        began, found = time.monotonic(), {}
        while time.monotonic() - began < STATE_S:
            found = json.loads(self.labctl(part, "status", STACK, "--json")[1] or "{}")
            if found.get("state") in good:
                break
        self.tell(
            part,
            state=found.get("state"),
            seconds=time.monotonic() - began,
            ended=found.get("ended"),
            models={row["name"]: row.get("reason") for row in found.get("models", [])},
        )

    def processes(self, stack: str = STACK) -> list[psutil.Process]:
        """The processes of a stack."""
        folder = self.session.workspace.folder(stack)
        return [process for group in groups.groups(folder) for process in group.members()]

    def stub(self) -> psutil.Process:
        """The process in which vLLM computes."""
        for process in self.processes():
            if "python_backend_stub" in process.name() and any(f"/{MODEL}/" in word for word in process.cmdline()):
                return process
        raise LabError("vLLM's process was not found", "the stack is not up", code="stack-not-up")

    def memory_gb(self, stack: str = STACK) -> float:
        """Gigabytes that are taken on the GPU; in a rehearsal, those of the stack's processes."""
        if self.size is CARD:
            card = nvidia.gpus()[0]
            return ((card.memory or 0) - (card.free or 0)) / 1e9
        total = 0
        for process in self.processes(stack):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total / 1e9

    def doctors_gb(self, stack: str, chosen: dict[str, Any]) -> float:
        """Gigabytes that a stack needs by doctor's sum."""
        workspace = self.session.workspace
        lab, _ = self.session.catalog.stack(stack)
        plan = make_plan(workspace, lab, stack, Options(self.size.profile, chosen))
        shape = MemoryShape.of(weights.parse_source(str(plan.settings["model"])), workspace)
        card = nvidia.gpus()[0] if self.size is CARD else None
        assert shape, "a model whose sizes are known"
        free, total = (card.free, card.memory) if card else (None, None)
        parts = memory_parts(shape, plan.served, plan.settings, free, total)
        return sum(parts.values()) / 1e9

    def start(self) -> None:
        before, doctors = self.memory_gb(), self.doctors_gb(STACK, self.small())
        if self.up("start"):
            self.tell("start", before_gb=before, taken_gb=self.memory_gb() - before, doctor_gb=doctors)

    def killed(self) -> None:
        """The process of the model is killed; `labctl restart` brings it back."""
        if not self.up("killed"):
            return
        self.stub().send_signal(signal.SIGKILL)
        self.state("killed", "failed", "degraded")
        self.labctl("killed", "restart", STACK)
        self.answers("killed")

    def faults(self) -> None:
        """A step finds no memory, and the next request is answered; then the device is lost, and the server ends."""
        lab, _ = self.session.catalog.stack(STACK)
        chosen = Options(self.size.profile, {**self.small(), "async_scheduling": True})
        self.knob.unlink(missing_ok=True)
        with self.on_its_own(self.with_knob(lab, chosen), chosen) as handle:
            for fault in ("", "memory", "", "fault"):
                self.knob.write_text(fault, encoding="utf-8")
                with EngineStream(handle.record.endpoints.grpc) as stream:
                    record = stream.ask([5, 6, 7, 8], 8)
                    with contextlib.suppress(Exception):  # a server that ends
                        stream.wait(record, timeout=STATE_S)
                    self.tell("faults", fault=fault or "none", tokens=len(record.responses), said=record.error[:TOLD])
            self.state("faults", "failed")

    def schedulers(self) -> None:
        """Lab 08 and the most memory that it takes, beside doctor's sum."""
        before, most, over = self.memory_gb(LAB_08), 0.0, threading.Event()

        def look() -> None:
            nonlocal most
            while not over.wait(0.5):
                most = max(most, self.memory_gb(LAB_08))

        watching = threading.Thread(target=look, daemon=True)
        watching.start()
        said = self.out / "schedulers.json"
        said.unlink(missing_ok=True)
        try:
            words = ["--quick", "--profile", self.size.profile, "--runtime", "local", "--ports", "auto"]
            self.labctl("schedulers", "run", "vllm", *words, "--output", str(said))
        finally:
            over.set()
            watching.join()
        result = json.loads(said.read_text(encoding="utf-8")) if said.exists() else {}
        verdicts = {verdict["name"]: verdict["met"] for verdict in result.get("verdicts", [])}
        doctors = self.doctors_gb(LAB_08, {})
        self.tell("schedulers", taken_gb=most - before, doctor_gb=doctors, verdicts=verdicts)

    def compiler(self) -> None:
        """No compiler is in PATH, and nothing is compiled yet."""
        with tempfile.TemporaryDirectory() as folder:
            tools = Path(folder) / "bin"
            tools.mkdir()
            for place in reversed(os.environ["PATH"].split(os.pathsep)):
                for file in Path(place).glob("*"):
                    link = tools / file.name
                    if not COMPILERS.fullmatch(file.name) and os.access(file, os.X_OK):
                        link.unlink(missing_ok=True)
                        link.symlink_to(file)
            env = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
            env |= {name: f"{folder}/{name}" for name in CACHES}
            self.up("compiler", env={**env, "PATH": str(tools)})

    def modes(self) -> None:
        for chosen in ("execution=graphs", "execution=compiled", "kv_cache_dtype=fp8"):
            self.up("modes", "--set", chosen)
            self.labctl("modes", "down", STACK)

    def library(self) -> None:
        """A library that only LD_LIBRARY_PATH names: the driver's, or in a rehearsal one that vLLM loads on a CPU."""
        name = "libcuda.so.1" if self.size is CARD else "libnuma.so.1"
        with tempfile.TemporaryDirectory() as folder:
            shutil.copyfile(library_file(name), Path(folder) / name)
            named = ":".join(filter(None, (folder, os.environ.get("LD_LIBRARY_PATH"))))
            if self.up("library", env={**os.environ, "LD_LIBRARY_PATH": named}):
                maps = {line.path for line in self.stub().memory_maps(grouped=True)}
                self.tell("library", named=folder, loaded=sorted(path for path in maps if Path(path).name == name))

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
        self.tell("workload", what="weights", seconds=time.monotonic() - began, shape=self.size.shape)

    # -- the published workload, through Triton and alone -------------------------------------------------------------

    def workload(self) -> None:
        if not self.folder.is_dir():
            self.weights()
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))

        def ids_of(text: str) -> list[int]:
            return list(tokenizer.encode(text).ids)

        items = dataset.make_articles(lambda text: len(ids_of(text)), self.size.requests, scale=self.size.scale)
        requests = identity.encode(items, ids_of, 1900)
        began = time.monotonic()
        for number, side in enumerate(SIDES):
            took = time.monotonic() - began
            if number > 1 and took * (number + 1) / number > self.limit("workload"):
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
        with self.on_its_own(self.with_knob(lab, chosen), chosen) as handle:
            self.tell("workload", what="up", seconds=time.monotonic() - began)
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
                    "workload",
                    what="served",
                    limit=limit,
                    seconds=over - first,
                    mean_s=figures["Avg. latency (ms)"] / 1e3,
                    table=figures,
                    steps=len(steps),
                    in_vain=sum(step.in_vain or 0 for step in steps),
                    sending_s=max(r.start for r in records) - first,
                    first_step_s=steps[0].over - first if steps else None,
                    last_answer_s=over - steps[-1].over if steps else None,
                    batches=[step.batch for step in steps],
                    step_ms=statistics.median(1e3 * (b.over - a.over) for a, b in itertools.pairwise(steps)),
                    engine_ms=statistics.median((step.engine_us or 0) / 1e3 for step in steps),
                    took_s=time.monotonic() - began,
                )
            for log in sorted(run_dir.glob(f"steps-{MODEL}-*.jsonl")):
                shutil.copyfile(log, self.out / log.name)

    @contextlib.contextmanager
    def on_its_own(self, lab: Lab, chosen: Options) -> Iterator[RunningStack]:
        """A server of a changed lab for the time of a block."""
        own = replace(chosen, runtime="local", ports="auto", timeout=240.0)
        with ephemeral_stack(self.session, lab, STACK, own) as handle:
            yield handle

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
        self.engine("workload", asked)

    def engine(self, part: str, asked: dict[str, Any]) -> None:
        """vLLM without Triton, in a process of its own: each line that it says is a row."""
        lab, _ = self.session.catalog.stack(STACK)
        options = Options(profile=self.size.profile, set=self.choices())
        plan = make_plan(self.session.workspace, lab, STACK, options)
        env = {**os.environ, **plan.server_env, **self.layer.environment}  # the served side's threads
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
        for side in ("served", "watched", "alone"):
            limit = self.size.limits[0]
            medians = ", ".join(f"{row['step_ms']:.2f}" for row in self._of(side, limit))
            print(f"the median step with at most {limit}, {side}: {medians} ms")
        told = [tuple(_short(row, names) for names in COLUMNS) for row in self.rows[1:] if "what" not in row]
        print("\n" + format_table(told, ("part", "what", "s", "GB", "result")))

    def _of(self, what: str, limit: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("what") == what and row.get("limit") == limit]


def _short(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of these values that a row has, as a cell of a table."""
    value = next((row[name] for name in names if row.get(name) not in (None, "")), "")
    return f"{value:.1f}" if isinstance(value, float) else " ".join(str(value).split())[:90]


def draw(shape: str, folder: Path, models: Path) -> None:
    """In a process of its own, which gives the GPU back."""
    import torch

    torch.set_default_device("cuda")
    with replace_dir(folder) as fresh:
        random_weights.make_random_weights(shape, fresh, models, print)


def library_file(name: str) -> str:
    """Where this process finds a library of the system. Raises LabError."""
    ctypes.CDLL(name)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if Path(path := line.split(maxsplit=5)[-1]).name.startswith(name.partition(".so")[0] + ".so"):
            return path
    raise LabError(f"{name} was not found", "this process has loaded it", code="library-missing")


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
