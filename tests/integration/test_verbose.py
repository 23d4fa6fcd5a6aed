"""`--verbose` shows each command as it runs, on the local runtime."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery import copy_of_the_checkout, labctl, taken_down, with_faults_lab
from own_stack import server_of

from labctl.triton import arguments

pytestmark = pytest.mark.night

STACK = "quick"


@pytest.fixture
def own(tmp_path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    root = with_faults_lab(copy_of_the_checkout(tmp_path / "own", snapshot))
    yield root
    taken_down(root)


def ran(stderr: str) -> list[str]:
    """The commands that ``--verbose`` tells."""
    return [line.removeprefix("  $ ") for line in stderr.splitlines() if line.startswith("  $ ")]


def told(argv: list[str]) -> list[str]:
    """A command line as it may be told: without the secret of this very start."""
    return [re.sub(f"{arguments.KEY}=.*", f"{arguments.KEY}={arguments.SHOWN}", word) for word in argv]


def test_up_shows_the_command_that_it_starts_without_its_secret(own: Path, tmp_path: Path) -> None:
    done = labctl("up", STACK, "--runtime", "local", "--ports", "auto", "--verbose", root=own)
    server = server_of(own, STACK)
    assert server
    keeper = server.parent()
    assert keeper
    (shown,) = ran(done.stderr)
    assert shown.endswith(shlex.join(told(keeper.cmdline())))
    variables = dict(word.split("=", 1) for word in shlex.split(shown.removesuffix(shlex.join(told(keeper.cmdline())))))
    assert variables.items() <= server.environ().items()
    assert told(server.cmdline()) != server.cmdline(), "there is a secret to hide"


def test_run_shows_its_server_its_client_and_its_report(own: Path) -> None:
    done = labctl("run", "faults", "--runtime", "local", "--ports", "auto", "--verbose", root=own)
    server, client, report = ran(done.stderr)
    assert "tritonserver" in server and "/client.py" in client and "/report.py" in report
