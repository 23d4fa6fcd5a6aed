"""One stack of a lab: its folder, its options and its plan; and, where it is up, its record."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from labctl import repository
from labctl.catalog import load_lab
from labctl.lab import Lab
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import nvidia
from labctl.runtimes.base import Runtime
from labctl.runtimes.record import CLIENT, Endpoints, Record, Replica
from labctl.stack.ports import free_endpoints
from labctl.stack.session import EXERCISE, Session
from labctl.triton.server_api import ModelState
from labctl.workspace import StackFolder
from labkit.errors import LabError

# Options whose name on the command line differs from their field in Options.
FLAGS = {"client_shm": "--allow-client-shm", "replicas": "--replicas (labctl scale)"}


@dataclass(frozen=True)
class PlannedStack:
    """One stack of a lab as it is asked for, on the runtime that would serve it.

    It is a value: other options make another one. It does not say whether the stack is up
    (:class:`RunningStack`), and making one makes nothing.

    Attributes:
        own: the lab, if it is not the catalogue's but an exercise's or a case's, with a changed stack.
    """

    session: Session
    own: Lab | None
    name: str
    runtime: Runtime
    options: Options

    @property
    def lab(self) -> Lab:
        """The lab that it belongs to. Raises LabError: it is in no lab (any more)."""
        return self.own or self.session.catalog.stack(self.name)[0]

    @property
    def folder(self) -> StackFolder:
        return self.session.workspace.folder(self.name)

    @cached_property
    def plan(self) -> Plan:
        """Everything that follows from the lab and the options; made once. Raises LabError."""
        plan = make_plan(self.session.workspace, self.lab, self.name, self.options)
        return plan.require_templates(self.session.workspace)

    def with_options(self, options: Options) -> Self:
        """The same stack with these options and a new plan: weights that came since add their vocabulary to it."""
        return replace(self, options=options)

    @property
    def settled(self) -> Options:
        """Its options, with the GPU that the plan chose for them."""
        return replace(self.options, gpu=self.plan.gpu)


@dataclass(frozen=True)
class RunningStack(PlannedStack):
    """A stack that is up: the runtime that has it, and its record, which travels with the server and lies on disk.

    Its options are the ones it was started with. Its plan follows from today's lab.py, and may differ from what is
    served (edits.py). It is up, but not necessarily ready (status.py).

    Attributes:
        already: it was up before the command.
        answered: its models, where this command has seen each of them answer.
    """

    record: Record
    already: bool = False
    answered: Sequence[ModelState] = ()

    @property
    def lab(self) -> Lab:
        """The lab that it was brought up from, read alone. Raises LabError: it is not there (any more)."""
        if self.own or self.session.given:
            return super().lab
        return load_lab(self.session.workspace, self.record.lab, self.name)

    @classmethod
    def of(cls, session: Session, lab: Lab | None, runtime: Runtime, record: Record, already: bool = False) -> Self:
        return cls(session, lab, record.stack, runtime, record.asked, record, already)

    @classmethod
    def find(cls, session: Session, name: str) -> Self | None:
        """A stack that runs now; None where there is none. Raises Unknown as :meth:`Session.state` does."""
        if (found := session.state(name)) and found[1].alive:
            return cls.of(session, None, found[0], found[1].record)
        return None

    @classmethod
    def require_up(cls, session: Session, name: str) -> Self:
        """A stack that runs now. Raises LabError: it is not up; Unknown: its runtime cannot be asked."""
        if running := cls.find(session, name):
            return running
        remedy = f"labctl {'exercise check' if name == EXERCISE else f'up {name}'}"
        raise LabError(f"{name} is not up", "", remedy, code="stack-not-up")

    def in_lab(self, lab: Lab) -> Self:
        """The same, as a stack of this lab in the place of the catalogue's."""
        return replace(self, own=lab)

    def as_planned(self) -> Record:
        """Its record, once its models are loaded as they are planned."""
        plan = self.plan
        return replace(self.record, settings=plan.settings, effective=plan.effective, tokenizer_dir=plan.tokenizer_dir)


def record_of(stack: PlannedStack, endpoints: Endpoints) -> Record:
    """The record of the stack as it will be when it is up. Raises LabError: not each replica has GPUs of its own."""
    plan, options = stack.plan, stack.options
    policy = balancing_policy(plan, options)
    if policy and plan.profile == "gpu":
        nvidia.gpus_of_server(plan.gpu, plan.ranks, options.replicas or 1)
    places = free_endpoints(options.replicas or 1) if policy else []
    record = Record(
        stack=stack.name,
        lab=stack.lab.folder,
        runtime=stack.runtime.name,
        profile=plan.profile,
        settings=plan.settings,
        models=plan.served.models,
        endpoints=endpoints,
        tokenizer_dir=plan.tokenizer_dir,
        effective=plan.effective,
        balance=policy,
        options=stack.settled,
    )
    return with_servers(record, [Replica(number, place) for number, place in enumerate(places, 1)])


def balancing_policy(plan: Plan, options: Options) -> str | None:
    """Return how requests are spread; None for a stack that is one server and has no balancer."""
    chosen = options.balance
    if not chosen and (options.replicas or 1) > 1:
        chosen = "hash" if has_sequences(plan) else "l7"
    return chosen


def has_sequences(plan: Plan) -> bool:
    """Whether the requests of a client belong together: they form a sequence of Triton's sequence batcher."""
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
    """The options in which a running stack differs from these, one line each; [] if there are none.

    The runtime, the replicas and their balancer count only if a person names them. Ports and the time to wait
    are no reason to refuse a stack that runs.
    """
    plan, options, record, settled = stack.plan, stack.options, stack.record, stack.settled
    spread = options.replicas is not None or options.balance is not None
    if spread:
        settled = replace(settled, replicas=options.replicas or 1, balance=balancing_policy(plan, options))
    running, wanted = _by_name(record.asked, record.settings), _by_name(settled, plan.stack_settings)
    compared = {
        "--runtime": options.runtime is not None,
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
