"""One stack of a lab: its folder, its options, its plan and its lock; and, where it is up, its record."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from labctl import repository
from labctl.manifest.schema import Lab
from labctl.options import LOOPBACK, Options
from labctl.plan import Plan, make_plan
from labctl.runtimes.base import Runtime
from labctl.runtimes.record import CLIENT, Endpoints, Record, Replica
from labctl.workspace import StackFolder
from labkit.errors import LabError

if TYPE_CHECKING:
    from labctl.stack.session import Session

# The options on the command line that are not called as their field in Options.
FLAGS = {"client_shm": "--allow-client-shm", "replicas": "--replicas (labctl scale)"}


@dataclass(frozen=True)
class Stack:
    """One stack of a lab as it is asked for, on the runtime that would serve it.

    It is a value: with other options it is another one. It does not say whether anything of it is up
    (:class:`RunningStack`), and making one makes nothing.

    Attributes:
        own: the lab, if it is not the catalogue's: an exercise's or a case's, with a stack changed.
    """

    session: Session
    own: Lab | None
    name: str
    runtime: Runtime
    options: Options

    @property
    def lab(self) -> Lab:
        """The lab that it belongs to. Raises LabError: it is in no manifest (any more)."""
        return self.own or self.session.catalog.stack(self.name)[0]

    @property
    def folder(self) -> StackFolder:
        return self.session.workspace.folder(self.name)

    @cached_property
    def plan(self) -> Plan:
        """Everything that follows from the manifest and the options; made once. Raises LabError."""
        return make_plan(self.session.workspace, self.lab, self.name, self.options, self.runtime.server_path)

    def with_options(self, options: Options) -> Self:
        """The same stack with these options and a new plan: weights that came since add their vocabulary to it."""
        return replace(self, options=options)

    @property
    def settled(self) -> Options:
        """Its options, with the GPU that the plan chose for them."""
        return replace(self.options, gpu=self.plan.gpu)

    def lock(self, action: str) -> AbstractContextManager[None]:
        """Hold the stack against other commands. Raises Busy where another command holds it."""
        return self.session.lock(self.name, action)


@dataclass(frozen=True)
class RunningStack(Stack):
    """A stack that is up: the runtime that has it, and its record, which travels with the server and lies on disk.

    Its options are the ones it was started with. Its plan follows from today's lab.yaml, and may differ from what is
    served (edits.py). It is up, but not necessarily ready (status.py).

    Attributes:
        already: it was up before the command.
    """

    record: Record
    already: bool = False

    @classmethod
    def of(cls, session: Session, lab: Lab | None, runtime: Runtime, record: Record, already: bool = False) -> Self:
        return cls(session, lab, record.stack, runtime, record.asked, record, already)

    def in_lab(self, lab: Lab) -> Self:
        """The same, as a stack of this lab in the place of the catalogue's."""
        return replace(self, own=lab)

    def as_planned(self) -> Record:
        """Its record, once its models are loaded as they are planned."""
        plan = self.plan
        return replace(self.record, settings=plan.settings, effective=plan.effective, tokenizer_dir=plan.tokenizer_dir)


def named_endpoints(ports: str) -> Endpoints | None:
    """Where the ports of ``--ports`` are; None for ``auto``. Raises LabError if the text is not three ports."""
    if ports == "auto":
        return None
    with contextlib.suppress(ValueError):
        numbers = [int(item) for item in ports.split(",")]
        if len(numbers) == len(set(numbers)) == 3 and all(0 < number < 65536 for number in numbers):
            return Endpoints(*(f"{LOOPBACK}:{number}" for number in numbers))
    raise LabError(
        f"--ports {ports} cannot be used",
        "it takes three different ports (HTTP, gRPC, metrics) or auto",
        "--ports 8000,8001,8002, or --ports auto",
        code="ports-invalid",
    )


def balancing_policy(plan: Plan, options: Options) -> str:
    """How requests are spread; "" for a stack that is one server and has no balancer.

    Raises LabError: GPUs would be shared.
    """
    chosen = options.balance
    if not chosen and (options.replicas or 1) > 1:
        chosen = "hash" if has_sequences(plan) else "l7"
    if chosen and plan.profile == "gpu":
        raise LabError(
            "replicas need a GPU each",
            "on one machine they would share its GPUs",
            "--profile cpu, or many machines",
            code="replicas-need-gpus",
        )
    return chosen


def has_sequences(plan: Plan) -> bool:
    """Whether requests of one client belong together: a model has Triton's sequence batcher, and not for itself."""
    with contextlib.suppress(LabError, OSError):
        texts = (
            path.read_text("utf-8", "replace")
            for place, path in repository.origins(plan.request).items()
            if place.endswith("config.pbtxt")
        )
        return any("sequence_batching" in text and "iterative_sequence" not in text for text in texts)
    return False


def with_servers(record: Record, servers: Sequence[Replica]) -> Record:
    """The record with these servers; clients that spread their requests themselves have all of them as an endpoint."""
    endpoints = record.endpoints
    if record.balance == CLIENT:  # gRPC's name for several addresses
        endpoints = replace(endpoints, grpc="ipv4:" + ",".join(server.endpoints.grpc for server in servers))
    return replace(record, servers=servers, endpoints=endpoints)


def option_differences(stack: RunningStack) -> list[str]:
    """How a stack runs otherwise than with these options, one line for each option; [] if it does not.

    What a person leaves open is as it is: the runtime, the replicas and their balancer. Ports and the time to wait
    are no reason to refuse a stack that runs.
    """
    plan, options, record, settled = stack.plan, stack.options, stack.record, stack.settled
    spread = options.replicas is not None or options.balance != ""
    if spread:
        settled = replace(settled, replicas=options.replicas or 1, balance=balancing_policy(plan, options))
    running, wanted = _by_name(record.asked, record.settings), _by_name(settled, plan.stack_settings)
    compared = {
        "--runtime": options.runtime != "",
        "--ports": False,
        "--timeout": False,
        FLAGS["replicas"]: spread,
        "--balance": spread,
    }
    return [
        f"{name}: it runs with {_in_words(running.get(name))}, you asked for {_in_words(value)}"
        for name, value in wanted.items()
        if compared.get(name, True) and running.get(name) != value
    ]


def _by_name(options: Options, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every setting and every option, by its name on the command line."""
    flags = {FLAGS.get(name, f"--{name}"): value for name, value in vars(options).items() if name != "set"}
    return {**settings, **flags}


def _in_words(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in ("", None, ()) else value
