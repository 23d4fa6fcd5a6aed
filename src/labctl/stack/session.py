"""What every command works with: the checkout, its labs, the runtime, and a listener."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from labctl.listener import Listener
from labctl.manifest.catalog import Catalog, load_catalog
from labctl.runtimes import docker_engine
from labctl.runtimes.base import Runtime
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Record
from labctl.stack.stack import RunningStack
from labctl.workspace import RUNTIMES, Workspace
from labkit import disk
from labkit.disk import atomic_write
from labkit.errors import LabError

T = TypeVar("T")
EXERCISE = "exercise"  # the stack that exercises are checked on; it is no lab's


@dataclass(frozen=True)
class Session:
    """What one command works with."""

    workspace: Workspace
    catalog: Catalog
    listener: Listener
    _told: set[str] = field(default_factory=set)  # so that what was chosen is said once, however many phases there are

    @classmethod
    def open(cls, listener: Listener, whatever_is_broken: bool = False) -> Session:
        """The session of the current folder.

        ``whatever_is_broken``: a lab whose manifest is broken is left out, with a note, instead of refused:
        so that a running stack can be looked at and taken down while a person writes a lab.
        """
        workspace = Workspace.find()
        leave_out = (lambda problem: listener.note(f"left out: {problem}")) if whatever_is_broken else None
        return cls(workspace, load_catalog(workspace, leave_out, at_use=not whatever_is_broken), listener)

    def lock(self, stack: str, action: str) -> AbstractContextManager[None]:
        """Hold a stack against other commands. Raises Busy where another command holds it."""
        return stack_lock(self.workspace, stack, action)

    # ----------------------------------------------------------------------------------------------------------------

    def stacks_named(self, word: str) -> list[str]:
        """The stacks of a lab, or the one of that name: also one that was brought up and is in no manifest (any more).

        Raises LabError: there is none.
        """
        try:
            lab = self.catalog.lab(word)
        except LabError:
            if word in self.known():
                return [word]
            raise
        return [word] if word in lab.stacks else list(lab.stacks)

    def known(self) -> set[str]:
        """The stacks that run, and the stacks that may: brought up and not taken down, or on a silent engine."""
        remembered = {folder.name for folder in self.workspace.folders() if folder.was_up}
        silent = {name for runtime in self.silences() for name in self.possible(runtime)}
        return remembered | silent | {record.stack for record in self.running()}

    def runtime(self, name: str) -> Runtime:
        """The runtime of that name, unchecked."""
        return LocalRuntime(self.workspace) if name == "local" else ComposeRuntime(self.workspace)

    @property
    def runtimes(self) -> tuple[Runtime, Runtime]:
        """Both, local first."""
        return self.runtime("local"), self.runtime("compose")

    def choose(self, wanted: str, profile: str) -> Runtime:
        """The runtime to start on; where ``wanted`` is "", local.

        Raises LabError: it cannot serve that profile here.
        """
        runtime = self.runtime(wanted or RUNTIMES[0])
        runtime.check(profile)
        return runtime

    def say_how_long(self, slow: Sequence[int]) -> None:
        """Say how long it takes to make the images."""
        if slow:
            count = f"{len(slow)} images are" if len(slow) > 1 else "1 image is"
            self.listener.note(f"{count} made first: about {sum(slow)} minutes, once")

    def find(self, stack: str) -> RunningStack | None:
        """A stack that runs now, on whichever runtime; None where there is none.

        Raises Unknown: it may run on a runtime that cannot be asked now.
        """
        silent: dict[str, LabError] = {}
        for runtime in self.runtimes:
            try:
                if record := runtime.find(stack):
                    return RunningStack.of(self, None, runtime, self._as_set(record))
            except LabError as error:
                silent[runtime.name] = error
        for name, silence in silent.items():
            if memory := self.traces(stack, name):
                raise _unknown(stack, silence, memory)
        return None

    def traces(self, stack: str, runtime: str) -> list[Path]:
        """The files that say that a stack may run on a runtime: it was brought up there, or its files are rendered."""
        folder, kept = self.workspace.folder(stack), self.remembered(stack)
        brought_up = [folder.state_file] if kept and kept.runtime == runtime else []
        by_hand = [folder.env_file] if runtime == ComposeRuntime.name and folder.env_file.exists() else []
        return brought_up + by_hand

    def possible(self, runtime: str) -> set[str]:
        """The stacks that may run on a runtime, as far as files tell."""
        return {folder.name for folder in self.workspace.folders() if self.traces(folder.name, runtime)}

    def silences(self) -> dict[str, LabError]:
        """The runtimes that cannot say now what runs on them, and why."""
        silent: dict[str, LabError] = {}
        for runtime in self.runtimes:
            try:
                runtime.running()
            except LabError as error:
                silent[runtime.name] = error
        return silent

    def may_run(self, stack: str) -> bool:
        """Whether a stack runs, as far as that can be known: one of a runtime that cannot be asked may."""
        try:
            return self.find(stack) is not None
        except Unknown:
            return True

    def require_up(self, stack: str) -> RunningStack:
        """A stack that runs now. Raises LabError where it is not up, or nobody can tell (Unknown)."""
        if running := self.find(stack):
            return running
        raise LabError(
            f"{stack} is not up",
            "",
            f"labctl {'exercise check' if stack == EXERCISE else f'up {stack}'}",
            code="stack-not-up",
        )

    def _as_set(self, record: Record) -> Record:
        """The record, updated from the state file: settings loaded since the start, dead replicas, the balancer now."""
        kept = self.remembered(record.stack)
        if kept is None or bool(kept.balance) != bool(record.balance):
            return record
        if kept.balance != record.balance and not set(kept.servers) & set(record.servers):
            return record  # of others, that had the stack's name before
        if not record.balance and kept.endpoints != record.endpoints:
            return record
        servers = {server.number: server for server in (*kept.servers, *record.servers)} if record.balance else {}
        return replace(
            record,
            settings=kept.settings,
            effective=kept.effective,
            tokenizer_dir=kept.tokenizer_dir,
            balance=kept.balance,
            endpoints=kept.endpoints,
            servers=[servers[number] for number in sorted(servers)] or record.servers,
        )

    def running(self) -> list[Record]:
        """The records of every stack of this checkout that exists now, on the runtimes that answer."""
        running: list[Record] = []
        for runtime in self.runtimes:
            with contextlib.suppress(LabError):
                running += runtime.running()
        return running

    # -- the state file: only a memory of what was up, never the proof that it is ----------------------------------

    def remember(self, record: Record) -> None:
        atomic_write(self.workspace.folder(record.stack).state_file, record.to_json())

    def remembered(self, stack: str) -> Record | None:
        """The record of a stack that was brought up and not taken down; a damaged file counts as none, with a note."""
        path = self.workspace.folder(stack).state_file
        try:
            record = Record.from_json(disk.read_text(path))
            if record.stack == stack:
                return record
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.listener.note(f"{path} cannot be read and is ignored: what runs is looked up again")
        return None

    def forget(self, stack: str) -> None:
        folder = self.workspace.folder(stack)
        paths = (folder.state_file, folder.secret, folder.door_url, folder.env_file)
        for path in (*paths, folder.ended_file(), *folder.ended_files):
            path.unlink(missing_ok=True)


class Unknown(LabError):
    """It is unknown whether a stack runs: a runtime that it may run on does not answer."""


def _unknown(stack: str, error: LabError, memory: Sequence[Path]) -> Unknown:
    files = shlex.join(map(str, memory))
    forget = "" if error.remedy == docker_engine.OUTSIDE else f"; where that engine is gone for good: rm {files}"
    what = f"whether {stack} runs is not known: {error.what}"
    return Unknown(what, error.why, error.remedy + forget, code="stack-unknown")
