"""One stack of a lab: its folder, its options, its plan and its lock; and, where it is up, its record."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from labctl.manifest.schema import Lab
from labctl.plan import Plan, make_plan
from labctl.runtimes.base import Launch, Runtime
from labctl.runtimes.record import Record, UpOptions
from labctl.stack.session import Session
from labctl.stackfolder import StackFolder


@dataclass(frozen=True)
class Stack:
    """A stack as it is asked for, on the runtime that serves it."""

    session: Session
    lab: Lab
    name: str
    runtime: Runtime
    options: UpOptions

    @property
    def folder(self) -> StackFolder:
        return self.session.workspace.folder(self.name)

    @cached_property
    def plan(self) -> Plan:
        """Everything that follows from the manifest and the options; made once. Raises LabError."""
        return make_plan(
            self.session.workspace, self.lab, self.name, self.options.choices, self.runtime.server_path
        )  # fmt: skip

    def planned_again(self) -> Plan:
        """The plan, made anew: weights that have come since say how large their vocabulary is."""
        self.__dict__.pop("plan", None)
        return self.plan

    def lock(self, action: str) -> AbstractContextManager[None]:
        """Hold the stack against other commands. Raises Busy where another command holds it."""
        return self.session.lock(self.name, action)

    def launch(self, record: Record, only: tuple[int, ...] = ()) -> Launch:
        """All that the runtime needs to start the stack's servers, or only those of these numbers."""
        return launch_of(self.folder, self.plan, record, only)


@dataclass(frozen=True)
class RunningStack(Stack):
    """A stack that is up. ``already`` says that it was so before the command."""

    record: Record
    already: bool = False

    @classmethod
    def of(cls, session: Session, lab: Lab, runtime: Runtime, record: Record, already: bool = False) -> Self:
        return cls(session, lab, record.stack, runtime, record.asked, record, already)


def launch_of(folder: StackFolder, plan: Plan, record: Record, only: tuple[int, ...] = ()) -> Launch:
    """All that a runtime needs to start the servers of a plan, or only those of these numbers."""
    server = plan.stack.server
    return Launch(
        record=record, repository=folder.repository, run_dir=folder.run_dir(), server_args=plan.server_args,
        env=plan.server_env, shm_size=server.shm_size, exit_timeout=server.exit_timeout, image=plan.image,
        ranks=plan.ranks, devices=plan.devices, launcher=plan.release.launcher if plan.release else "", only=only,
        packages=plan.stack.packages,
    )  # fmt: skip
