"""A sick server: which fault a code stands for, how the server gets it, and what is said of an answer."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from labctl import repository
from labctl.litter import files_in
from labctl.manifest.schema import Lab
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes.record import Record
from labctl.stack.down import down
from labctl.stack.session import Session
from labctl.stack.up import up
from labctl.unfinished import replace_dir
from labctl.workspace import Workspace
from labkit import nofollow
from labkit.clients.base import Tell
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence import metrics, steplog
from labkit.predict import clinic
from labkit.predict.clinic import GROUND, HEALTHY, SLOWER, Fault, Line
from labkit.workloads import clinic as clients
from labsched.lines import MODEL

STACK = "inflight-batching"
NAME = "mystery"  # the folder below .labs/
FILE = f"{MODEL}/1/scheduler.py"
SETTINGS = {
    "model": "random:tiny-llama",
    "decoupled_mode": "true",
    "batch_scheduler_policy": "max_utilization",
    "max_num_sequences": str(GROUND.slots),
    "max_tokens_in_paged_kv_cache": str(GROUND.blocks * GROUND.block_size),
    "max_num_tokens": str(GROUND.step_tokens),
    "pace": "h100",
    "pace_slower": f"{SLOWER:g}",
}
LETTERS, LENGTH = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789", 6
SEALED = '''"""What this scheduler does is yours to find out: labctl mystery answer."""

import base64
import zlib

exec(zlib.decompress(base64.b85decode("{text}")))
'''
START = "labctl mystery start"


def find_faults(workspace: Workspace) -> dict[str, Fault]:
    """Every file of ``labs/extras/mysteries/``, by name; HEALTHY too. Raises LabError: one cannot be loaded."""
    found = {}
    for path in files_in(workspace.extras / "mysteries", "*.py"):
        try:
            found[path.stem] = clinic.load_fault(path)
        except Exception as error:  # the file is executed
            why = f"{type(error).__name__}: {error}"
            raise LabError(
                f"{path} is not a mystery", why, "see docs/guide/mystery.md", code="mystery-broken"
            ) from error
    return found


def find_fault(faults: Mapping[str, Fault], name: str) -> Fault:
    """Raises LabError: there is no such fault."""
    if name not in faults:
        raise LabError(f"there is no fault {name}", "", "labctl mystery list", code="mystery-unknown")
    return faults[name]


def fault_of(code: str, faults: Mapping[str, Fault]) -> Fault:
    """The fault of a code: each name draws a number, and the highest wins. So a new file changes few codes."""
    if code == HEALTHY:
        return faults[HEALTHY]
    sick = [name for name in faults if name != HEALTHY]
    return faults[max(sick, key=lambda name: hashlib.blake2b(f"{code} {name}".encode()).digest())]


def draw_code(faults: Mapping[str, Fault], name: str = "", replicas: int = 1) -> str:
    """A new code: for that fault, or for any fault that ``replicas`` servers are enough to show."""
    while True:
        code = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
        fault = fault_of(code, faults)
        if fault.name == name or (not name and fault.replicas <= replicas):
            return code


def sealed_scheduler(fault: Fault) -> str:
    """A ``scheduler.py`` with the fault, which does not say at a glance what it is."""
    served = fault.source.partition("\ndef shows")[0]
    text = base64.b85encode(zlib.compress(served.encode(), 9)).decode()
    return SEALED.format(text=text)


class Evidence(NamedTuple):
    """What is to show a fault: a ``step`` of the log, by its number, or a ``counter``, by its name."""

    kind: str
    which: str


class Judgement(NamedTuple):
    """Whether one part of an answer holds, and why."""

    what: str
    holds: bool
    why: str


@dataclass(frozen=True)
class Case:
    """The sick server that is up."""

    session: Session
    record: Record
    faults: Mapping[str, Fault]
    code: str
    rounds: int  # rounds of load that were sent

    @property
    def fault(self) -> Fault:
        return fault_of(self.code, self.faults)

    def load(self, tell: Tell | None = None) -> int:
        """Send one more round of load. Returns its number of requests. Raises LabError: a request failed."""
        phases = clinic.make_phases(f"{self.code} {self.rounds}")
        _write(self.session.workspace, self.code, self.rounds + 1)
        clients.send_phases(self.record.endpoints.grpc, phases, tell)
        return sum(len(phase.requests) for phase in phases)

    def steps(self) -> list[Line]:
        """The steps of its log, as detectors get them."""
        return logged_steps(self.session.workspace)

    def judge(self, name: str, evidence: Sequence[Evidence]) -> list[Judgement]:
        """The judgements of an answer: of its name, then of each piece of evidence.

        Evidence is judged for the fault that is named. Raises LabError.
        """
        fault = find_fault(self.faults, name)
        right = fault.name == self.fault.name
        judgements = [Judgement("name", right, "that is its fault" if right else "its fault is another one")]
        steps = self.steps()
        for piece in evidence:
            if piece.kind == "step":
                holds, why = _judge_step(fault, steps, piece.which)
            else:
                holds, why = self._judge_counter(fault, piece.which)
            judgements.append(Judgement(" ".join(piece), holds, why))
        return judgements

    def _judge_counter(self, fault: Fault, which: str) -> tuple[bool, str]:
        """Whether a counter of the server shows the fault, and why."""
        if which not in fault.counters:
            return False, f"{which} cannot tell {fault.name} from other faults"
        snapshot = metrics.scrape(self.record.scrape_endpoints["metrics"])
        if histogram := snapshot.histograms.get((MODEL, which)):
            value, what = histogram.mean, "on average"
        else:
            steps = snapshot.own.get((MODEL, "labs_steps_total"), 0.0)
            value, what = snapshot.own.get((MODEL, which), 0.0) / max(1.0, steps), "a step"
        bounds = zip(("least", "most"), fault.counters[which], strict=True)
        words = " and ".join(f"at {word} {bound:g}" for word, bound in bounds if bound is not None)
        return fault.within(which, value), f"{value:.3g} {what}; it shows the fault with {words}"


def _judge_step(fault: Fault, steps: Sequence[Line], which: str) -> tuple[bool, str]:
    """Whether the step of that number shows the fault, and why."""
    if not any(str(step["n"]) == which for step in steps):
        return False, "the log has no such step"
    shown = {str(step["n"]) for step in fault.shows(steps)}
    if which in shown:
        return True, f"it shows {fault.name}"
    seen = "another step does" if shown else f"and no other of these {len(steps)} steps does"
    return False, f"it does not show {fault.name}, {seen}. What shows it: {fault.sign}"


def logged_steps(workspace: Workspace) -> list[Line]:
    """The steps in the stack's log, as detectors get them."""
    found = steplog.read_step_log(workspace.folder(STACK).run_dir(), MODEL)
    return clinic.expand_steps(
        [{**step.more, "t": step.ended, "dur": step.ended - step.began, "ids": [*step.ids]} for step in found]
    )


def start_case(session: Session, code: str, options: Options) -> Case:
    """Bring the stack up with the code's fault.

    Raises LabError: it is up already, or as :func:`up`.
    """
    if session.find(STACK):
        raise LabError(
            f"{STACK} is up already",
            "a sick server is that stack with a fault",
            f"labctl down {STACK}",
            code="mystery-stack-taken",
        )
    faults = find_faults(session.workspace)
    fault = fault_of(code, faults)
    options = replace(options, set=SETTINGS)
    if (options.replicas or 1) < fault.replicas:
        options = replace(options, replicas=fault.replicas)
    lab = _lab_with(session, sealed_scheduler(fault), options)
    _write(session.workspace, code, 0)
    running = up(session, lab, STACK, options)
    return Case(session, running.record, faults, code, 0)


def current_case(session: Session) -> Case:
    """The sick server that is up. Raises LabError: there is none, or it was loaded again without the fault."""
    folder = session.workspace.folder(NAME)
    there = session.find(STACK)
    try:
        state = nofollow.read_object(folder.purpose_file)
        code, rounds = str(state["code"]), int(state["rounds"])
    except (OSError, ValueError, KeyError, TypeError):
        there = None
    if there is None:
        raise LabError("no sick server is up", "", START, code="mystery-none-up")
    faults = find_faults(session.workspace)
    try:
        served = nofollow.read_text(session.workspace.folder(STACK).repository / FILE)
    except OSError:
        served = ""
    if served != sealed_scheduler(fault_of(code, faults)):
        why = "it was reloaded or restarted, or is another one"
        raise LabError(
            f"{STACK} is up without the fault", why, f"labctl down {STACK}, then {START}", code="mystery-without-fault"
        )
    return Case(session, there.record, faults, code, rounds)


def stop_case(session: Session) -> bool:
    """Take the sick server down, and forget its code; False if there was none.

    Raises LabError: it cannot be taken down, or nobody can tell whether it is up; its code is kept.
    """
    try:
        current_case(session)
    except LabError as error:
        if error.code not in ("mystery-none-up", "mystery-without-fault"):
            raise
        stopped = False
    else:
        stopped = down(session, STACK)
    folder = session.workspace.folder(NAME)
    folder.purpose_file.unlink(missing_ok=True)
    shutil.rmtree(folder.overlay, ignore_errors=True)
    return stopped


def _write(workspace: Workspace, code: str, rounds: int) -> None:
    atomic_write(workspace.folder(NAME).purpose_file, json.dumps({"code": code, "rounds": rounds}))


def _lab_with(session: Session, scheduler: str, options: Options) -> Lab:
    """The stack's lab with a ``scheduler.py`` laid over its templates."""
    workspace = session.workspace
    lab, _ = session.catalog.stack(STACK)
    request = make_plan(workspace, lab, STACK, options, str).request
    overlay = workspace.folder(NAME).overlay
    with replace_dir(overlay) as fresh:
        for place, origin in repository.origins(request).items():
            if place.startswith(f"{MODEL}/"):
                (fresh / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin, fresh / place)
        (fresh / FILE).write_text(scheduler, encoding="utf-8")
    stack = lab.stacks[STACK]
    own = stack.model_copy(update={"repository": [*stack.repository, str(overlay)]})
    return lab.model_copy(update={"stacks": {**lab.stacks, STACK: own}})
