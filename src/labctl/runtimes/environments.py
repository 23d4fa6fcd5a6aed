"""A Python environment of its own in the labs' cache: a tool that shares no package with the labs or with vLLM."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from labctl.runtimes.layers import Layer
from labctl.runtimes.processes import Command
from labkit.errors import LabError


@dataclass(frozen=True)
class Environment(Layer):
    """The packages that ``requirements/NAME.txt`` locks, as a virtual environment: it is made once, whole or not.

    ``with_torch``: also PyTorch's CPU build, in the labs' own version.
    """

    with_torch: bool = False
    needed = 2e9  # bytes of free disk: 0.9 or 1.2 GB, and its downloads while it is made
    sizes = f"{needed / 1e9:.1f} GB of disk"
    remedy = "the same command again"

    @property
    def python(self) -> Path:
        """Its interpreter. Its scripts have the path that it was made under, so a tool is started as a module."""
        return self.path / "bin" / "python"

    def require(self) -> Path:
        """Its folder. Raises LabError where it is not installed."""
        if not self.ready:
            raise LabError(
                f"{self.name} is not installed",
                "it has an environment of its own",
                self.remedy,
                code="environment-missing",
            )
        return self.path

    def _commands(self, target: Path) -> list[Command]:
        make = Command([sys.executable, "-m", "venv", "--without-pip", str(target)])
        return [make, *super()._commands(target)]

    def _pip(self, target: Path) -> Command:
        install = str(self.workspace.root / "docker" / "install-packages.sh")
        pip = f"{sys.executable} -m pip --python {target}/bin/python"
        torch = [str(self.workspace.root / "requirements" / "torch.txt")] if self.with_torch else []
        return Command(["sh", install, *torch, str(self.lock)], {"LABS_PIP": pip, "LABS_COMPILE": "--no-compile"})

    def _compile(self, target: Path) -> Command:
        """Without PyTorch's own tests: some are for newer Pythons, and would fail it."""
        return Command([*super()._compile(target).argv, "-x", "/torch/testing/"])
