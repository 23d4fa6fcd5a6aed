"""A stack as a Compose project: its name, environment and paths, and the commands on it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from labctl.runtimes.actions import Command
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

NOBODY = 65534


class Projects:
    """The Compose projects of one checkout."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.root = str(workspace.root)

    def inside(self, path: Path, server: bool) -> str:
        """The path in the containers of a path of this machine; the mounts are compose.yaml's."""
        workspace = self.workspace
        state = workspace.state
        if path.is_relative_to(state) and len(parts := path.relative_to(state).parts) > 1:
            if parts[1] == "run":
                return "/".join(("/labs/run", *parts[2:]))
            if server and parts[1] == "repository":
                return "/".join(("/models", *parts[2:]))
        mounts = [(workspace.models, "/labs/models"), (workspace.cache, "/labs/cache")]
        if not server:
            mounts += [(workspace.root / "results", "/labs/results"), (workspace.root, "/labs/checkout")]
        for outside, inside in mounts:
            if path.is_relative_to(outside):
                return str(Path(inside) / path.relative_to(outside))
        raise LabError(
            f"the containers cannot see {path}",
            "they see the checkout's models/ and the cache",
            f"put it below {workspace.cache}, or use --runtime local",
        )

    def require_readable_cache(self) -> None:
        """See that the server can look into the cache, where that is there.

        Raises:
            LabError: called by root, the server is nobody, and the folder is root's alone.
        """
        cache = self.workspace.cache
        if os.getuid() == 0 and cache.is_dir() and cache.stat().st_mode & 0o005 != 0o005:
            raise LabError(
                f"the server cannot read {cache}",
                "called by root, it runs as nobody (65534), and the folder is root's alone",
                f"chmod o+rx {cache}, or another LABS_CACHE",
            )

    def override_path(self, stack: str) -> Path:
        return self.workspace.folder(stack).compose_file

    def write_override(self, stack: str, services: Mapping[str, Any]) -> None:
        """Write what only this start says of the services. Ports and GPUs take the place of the other files' own."""
        text = json.dumps({"services": services}, indent=1)
        for key in ("ports", "devices"):
            text = text.replace(f'"{key}": [', f'"{key}": !override [')
        atomic_write(self.override_path(stack), text.replace("$", "$$"))  # Compose would take a dollar for a variable

    def name(self, stack: str) -> str:
        """Unlike for two checkouts, so that their stacks stand side by side."""
        return f"labs-{stack}-{hashlib.sha256(self.root.encode()).hexdigest()[:8]}"

    def environment(self, stack: str) -> dict[str, str]:
        """The values of compose.yaml's variables that are the same for every command on a stack."""
        user = f"{os.getuid()}:{os.getgid()}"
        return {
            "LABS_CHECKOUT": self.root,
            "LABS_STACK": stack,
            "LABS_CACHE": str(self.workspace.cache),
            "LABS_RUN": str(self.workspace.folder(stack).run_dir()),
            "LABS_RESULTS": str(self.workspace.root / "results"),
            "LABS_USER": user,
            "LABS_MEMORY": self.memory(1),
            "LABS_SERVER_USER": user if os.getuid() else f"{NOBODY}:{NOBODY}",
        }

    def memory(self, servers: int) -> str:
        """The memory limit of each of ``servers`` that share this machine, in bytes; LABS_MEMORY names another."""
        return os.environ.get("LABS_MEMORY") or str(psutil.virtual_memory().total * 9 // 10 // servers)

    def compose_files(self, profile: str = "cpu", override: Path | None = None, guarded: bool = False) -> list[Path]:
        """The Compose files of a command, the later over the earlier."""
        over = ["compose.gpu.yaml"] * (profile == "gpu") + ["compose.guard.yaml"] * guarded
        return [*(self.workspace.root / name for name in ("compose.yaml", *over)), *([override] if override else [])]

    def command(
        self,
        stack: str,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        profile: str = "cpu",
        override: Path | None = None,
        container: str = "",
        guarded: bool = False,
    ) -> Command:
        """A ``docker compose`` command on a stack's project."""
        options = [
            option for path in self.compose_files(profile, override, guarded) for option in ("--file", str(path))
        ]
        options += ["--project-directory", self.root]
        argv = ["docker", "compose", "--project-name", self.name(stack), *options, *words]
        return Command(argv, {**self.environment(stack), **(env or {})}, container, self.workspace.root)

    def by_labels(self, stack: str, words: Sequence[str]) -> Command:
        """A command without files: Compose finds the project by its labels alone, whatever the files say today."""
        argv = ["docker", "compose", "--project-name", self.name(stack), *words]
        return Command(argv, cwd=Path("/"))  # where there is no Compose file
