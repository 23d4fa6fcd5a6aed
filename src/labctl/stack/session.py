"""What every command works with: the checkout, its labs, the runtimes, and a listener."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from labctl.catalog import Catalog, load_catalog
from labctl.listener import Listener
from labctl.runtimes import docker_engine
from labctl.runtimes.base import Runtime, State
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_project import Projects
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Record
from labctl.workspace import RUNTIMES, Workspace
from labkit.errors import LabError

EXERCISE = "exercise"  # the stack that exercises are checked on; it belongs to no lab


@dataclass(frozen=True)
class Session:
    """What one command works with."""

    workspace: Workspace
    given: Catalog | None
    listener: Listener
    whatever_is_broken: bool = False

    @classmethod
    def open(cls, listener: Listener, whatever_is_broken: bool = False) -> Session:
        """The session of the current folder.

        ``whatever_is_broken``: a lab that cannot be read is left out, with a note, also where all labs are asked for:
        so that a running stack can be looked at and taken down while a person writes a lab.
        """
        return cls(Workspace.find(), None, listener, whatever_is_broken)

    @cached_property
    def catalog(self) -> Catalog:
        """The labs, which are read when they are first asked for."""
        if self.given:
            return self.given
        catalog = load_catalog(self.workspace)
        if not self.whatever_is_broken:
            return catalog
        for where, why in catalog.broken.items():
            self.listener.note(f"left out: {where}: {why}")
        return replace(catalog, broken={})

    # ----------------------------------------------------------------------------------------------------------------

    def stacks_named(self, word: str) -> list[str]:
        """The stacks of a lab, or the one of that name: also one that was brought up and is in no lab (any more).

        For one that was brought up no lab is read. Raises LabError: there is none.
        """
        if word in {folder.name for folder in self.workspace.folders() if folder.was_up}:
            return [word]
        try:
            lab = self.catalog.lab(word)
        except LabError:
            if word in self.look()[0]:
                return [word]
            raise
        return [word] if word in lab.stacks else list(lab.stacks)

    def look(self) -> tuple[set[str], LabError | None]:
        """Return the names of all that something may be left of, and why the engine cannot say, where it cannot.

        They are those of stacks, and of tools of a labctl that was killed.
        """
        folders = self.workspace.folders()
        names = {folder.name for folder in folders if folder.was_up}
        try:
            return names | ComposeRuntime(self.workspace).stacks(), None
        except LabError as silence:
            return names | {folder.name for folder in folders if self.container_files(folder.name)}, silence

    def runtime(self, name: str) -> Runtime:
        """The runtime of that name, unchecked."""
        return LocalRuntime(self.workspace) if name == "local" else ComposeRuntime(self.workspace)

    @property
    def runtimes(self) -> tuple[Runtime, Runtime]:
        """Both runtimes, local first."""
        return self.runtime("local"), self.runtime("compose")

    def choose(self, wanted: str | None, profile: str) -> Runtime:
        """Return the runtime to start on: the one that is wanted, else local.

        Raises LabError: it cannot serve that profile here.
        """
        runtime = self.runtime(wanted or RUNTIMES[0])
        runtime.check(profile)
        return runtime

    def state(self, stack: str) -> tuple[Runtime, State] | None:
        """What there is of a stack that was brought up, or is up by hand, and on which runtime; None where it is not.

        The engine is asked only for a stack whose files say that it has containers.

        Raises Unknown: it may run in containers, and the engine does not answer.
        """
        found, kept = None, self.remembered(stack)
        if kept and kept.runtime == LocalRuntime.name:
            local = self.runtime(LocalRuntime.name)
            found = local, local.state(kept)
            if found[1].alive:
                return found
        files, rendered = self.container_files(stack), not kept or kept.runtime == LocalRuntime.name
        if files and (record := Projects(self.workspace).record(stack) if rendered else kept):
            compose = self.runtime(ComposeRuntime.name)
            try:
                state = compose.state(record)
            except LabError as silence:
                raise Unknown.of(stack, silence, files) from silence
            if state.alive or not rendered:
                return compose, state
        return found

    def container_files(self, stack: str) -> list[Path]:
        """The files that say that a stack may run in containers: it was brought up there, or rendered by hand."""
        folder, kept = self.workspace.folder(stack), self.remembered(stack)
        brought_up = [folder.state_file] if kept and kept.runtime == ComposeRuntime.name else []
        return brought_up + ([folder.env_file] if folder.env_file.exists() else [])

    def may_run(self, stack: str) -> bool:
        """Whether a stack runs. True as well if its runtime cannot be asked."""
        try:
            found = self.state(stack)
        except Unknown:
            return True
        return bool(found and found[1].alive)

    def running(self) -> list[Record]:
        """The records of every stack of this checkout that runs now, as far as that is known."""
        records: list[Record] = []
        for folder in self.workspace.folders():
            with contextlib.suppress(LabError):
                if (found := self.state(folder.name)) and found[1].alive:
                    records.append(found[1].record)
        return records

    # -- the state file: only a memory of what was up, never the proof that it is ----------------------------------

    def remember(self, record: Record) -> None:
        """Write the record of a stack into its state file."""
        record.write(self.workspace.folder(record.stack).state_file)

    def remembered(self, stack: str) -> Record | None:
        """The record of a stack that was brought up and not taken down; a damaged file counts as none, with a note."""
        path = self.workspace.folder(stack).state_file
        try:
            record = Record.read(path)
            if record.stack == stack:
                return record
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.listener.note(f"{path} cannot be read and is ignored: what runs is looked up again")
        return None

    def forget(self, stack: str) -> None:
        """Remove what a stack is known by; last the state file, by which the next command finds it until then."""
        folder = self.workspace.folder(stack)
        ended = (folder.ended_file(), *folder.ended_files)
        for path in (folder.secret, folder.door_url, folder.env_file, *ended, folder.state_file):
            path.unlink(missing_ok=True)


class Unknown(LabError):
    """It is unknown whether a stack runs: its files say that it has containers, and the engine does not answer."""

    @classmethod
    def of(cls, stack: str, silence: LabError, files: Sequence[Path]) -> Self:
        removal = f"; where that engine is gone for good: rm {shlex.join(map(str, files))}"
        forget = "" if silence.remedy == docker_engine.OUTSIDE else removal
        what = f"whether {stack} runs is not known: {silence.what}"
        return cls(what, silence.why, silence.remedy + forget, code="stack-unknown")
