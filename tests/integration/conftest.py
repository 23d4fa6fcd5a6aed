"""Real servers for the integration tests: the local runtime, brought up once per combination of settings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def labctl(
    *arguments: str, root: Path = ROOT, timeout: float = 240, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the real command line as a person does."""
    done = subprocess.run(
        [sys.executable, "-m", "labctl", *arguments],
        cwd=root, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if check:
        assert done.returncode == 0, f"labctl {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done


@dataclass(frozen=True)
class LabServer:
    """A stack that is up. Endpoints are ``host:port``."""

    http: str
    grpc: str
    metrics: str
    run_dir: Path
    log_file: Path
    settings: dict[str, Any]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the tests' own, by links: a person's stacks are not touched."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "labs", "model_repos", "models", "scripts", "src", "compose.yaml", "docker"):
        if (ROOT / name).exists():
            (root / name).symlink_to(ROOT / name)
    return root


@pytest.fixture(scope="session")
def lab_server(checkout: Path) -> Iterator[Callable[..., LabServer]]:
    """``lab_server("iterative", kv_cache=True)``: that stack with those settings, up.

    A stack that is up with other settings is taken down first; all are taken down in the end.
    """
    up: dict[str, tuple[str, LabServer]] = {}

    def bring(stack: str, *options: str, **settings: Any) -> LabServer:
        arguments = [*options, *_assignments(settings)]
        key = json.dumps(arguments)
        if stack in up and up[stack][0] == key and labctl("status", stack, "--json", root=checkout).returncode == 0:
            return up[stack][1]
        if stack in up:
            labctl("down", stack, root=checkout)
        done = labctl("up", stack, "--json", "--runtime", "local", "--ports", "auto", *arguments, root=checkout)
        shown = json.loads(done.stdout)
        folder = checkout / ".labs" / stack
        server = LabServer(
            **shown["endpoints"], run_dir=folder / "run", log_file=folder / "server.log", settings=shown["settings"]
        )
        up[stack] = (key, server)
        return server

    try:
        yield bring
    finally:
        labctl("down", "--all", root=checkout)


def _assignments(settings: dict[str, Any]) -> Sequence[str]:
    pairs = []
    for key, value in sorted(settings.items()):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        pairs += ["--set", f"{key}={text}"]
    return pairs
