"""What every command works with: the checkout, its labs, the runtime, and a listener."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from labctl import secret
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.manifest.catalog import Catalog, load
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Record, Runtime
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace, atomic_write


@dataclass(frozen=True)
class Session:
    """One invocation's world."""

    workspace: Workspace
    catalog: Catalog
    listener: Listener
    _told: set[str] = field(default_factory=set)  # so that what was chosen is said once, however many phases there are

    @classmethod
    def open(cls, listener: Listener) -> Session:
        workspace = Workspace.find()
        return cls(workspace, load(workspace), listener)

    def runtime(self, name: str) -> Runtime:
        """The runtime of that name, unchecked."""
        if name == "local":
            return LocalRuntime(self.workspace)
        return ComposeRuntime(self.workspace)

    def choose(self, wanted: str, profile: str) -> Runtime:
        """The runtime to start on: as wanted, or with ``auto`` compose if a Docker engine answers, else local.

        Raises:
            LabError: the runtime cannot serve that profile here.
        """
        if wanted != "auto":
            runtime = self.runtime(wanted)
            runtime.check(profile)
            return runtime
        compose = self.runtime("compose")
        try:
            compose.check(profile)
        except LabError as error:
            # A dead DOCKER_HOST is somebody's intent: say what it was, not only that nothing answers.
            host = os.environ.get("DOCKER_HOST")
            asked = f" at DOCKER_HOST={host}" if host else ""
            local = self.runtime("local")
            try:
                local.check(profile)
            except LabError as missing:
                raise LabError(
                    "neither runtime can be used here",
                    "",
                    missing.remedy,
                    details=[f"compose{asked}: {error.what}", f"local: {missing.what}"],
                ) from error
            self._tell(f"runtime local: {error.what}{asked}")
            return local
        self._tell("runtime compose: a Docker engine answers")
        return compose

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.listener.note(text)

    def say_how_long(self, actions: Sequence[Action[str]], wanted: str, profile: str) -> None:
        """Say what takes minutes before it begins, and what could be had instead where nobody asked for containers."""
        slow = [action for action in actions if action.minutes]
        if not slow:
            return
        images = f"{len(slow)} image{'s are' if len(slow) > 1 else ' is'} made first"
        self.listener.note(f"{images}: about {sum(action.minutes for action in slow)} minutes, once")
        if wanted == "auto":
            with contextlib.suppress(LabError):
                self.runtime("local").check(profile)
                self.listener.note("--runtime local runs the same Triton as a process of this machine, without images")

    def likely(self, wanted: str, profile: str) -> Runtime:
        """The runtime that would be chosen; what it lacks is no matter."""
        if wanted != "auto":
            return self.runtime(wanted)
        compose = self.runtime("compose")
        try:
            compose.check("cpu")
        except LabError:
            return compose if profile == "gpu" else self.runtime("local")
        return compose

    def find(self, stack: str) -> tuple[Runtime, Record] | None:
        """Where a stack runs now, on whichever runtime."""
        for name in ("local", "compose"):
            runtime = self.runtime(name)
            with contextlib.suppress(LabError):
                if record := runtime.find(stack):
                    return runtime, self._as_set(record)
        return None

    def _as_set(self, record: Record) -> Record:
        """The record with what its servers cannot know, for they know only what was so when they were started.

        That is the settings that the models were last loaded with, the replicas of which nothing exists any more, and
        how requests are spread over the others now.
        """
        kept = self.remembered(record.stack)
        if kept is None or (kept.front, kept.bind) != (record.front, record.bind):
            return record
        if kept.balance != record.balance and not set(kept.servers) & set(record.servers):
            return record  # of others, that had the stack's name before
        if not record.balance and kept.endpoints != record.endpoints:
            return record
        servers = {server.number: server for server in (*kept.servers, *record.servers)} if record.balance else {}
        return replace(
            record, settings=kept.settings, effective=kept.effective, tokenizer_dir=kept.tokenizer_dir,
            balance=kept.balance, endpoints=kept.endpoints,
            servers=[servers[number] for number in sorted(servers)] or record.servers,
        )  # fmt: skip

    def running(self) -> list[tuple[Runtime, Record]]:
        """Every stack of this checkout that exists now."""
        running: list[tuple[Runtime, Record]] = []
        for name in ("local", "compose"):
            runtime = self.runtime(name)
            with contextlib.suppress(LabError):
                running += [(runtime, record) for record in runtime.running()]
        return running

    # -- the state file: only a memory of what was up, never the proof that it is ----------------------------------

    def remember(self, record: Record) -> None:
        atomic_write(self.state_file(record.stack), record.to_json())

    def remembered(self, stack: str) -> Record | None:
        """The record of a stack that was brought up and not taken down; a damaged file counts as none, with a note."""
        path = self.state_file(stack)
        try:
            return Record.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            self.listener.note(f"{path} cannot be read and is ignored: what runs is looked up afresh")
            return None

    def forget(self, stack: str) -> None:
        self.state_file(stack).unlink(missing_ok=True)
        for path in (self.workspace.ended_file(stack), *self.workspace.ended_files(stack)):
            path.unlink(missing_ok=True)
        secret.forget(self.workspace, stack)

    def state_file(self, stack: str) -> Path:
        return self.workspace.stack_dir(stack) / "state.json"
