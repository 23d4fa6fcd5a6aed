"""What `--dry-run` prints is what is then run, on the local runtime."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from machinery import copy_of_the_checkout, labctl, share_server, taken_down, with_faults_lab

from labctl.cli.console import command_line
from labctl.runtimes.local import LocalRuntime
from labctl.stack.ports import claim_endpoints
from labctl.triton import arguments
from labctl.workspace import Workspace

pytestmark = pytest.mark.night

STACK = "quick"


@pytest.fixture
def own(tmp_path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    root = with_faults_lab(copy_of_the_checkout(tmp_path / "own", snapshot))
    yield root
    taken_down(root)


def free_ports() -> list[str]:
    return ["--ports", ",".join(e.rpartition(":")[2] for e in vars(claim_endpoints("auto", [])).values())]


def files_of(*folders: Path) -> set[str]:
    """Every file and link, but for the locks that any command takes and Python's own bytecode."""
    found = (path for folder in folders for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {str(path) for path in found if "lock" not in path.name and path.suffix != ".pyc"}


def ran(stderr: str) -> list[str]:
    """The commands that ``--verbose`` tells."""
    return [line.removeprefix("  $ ") for line in stderr.splitlines() if line.startswith("  $ ")]


def told(argv: list[str]) -> list[str]:
    """A command line as it may be told: without the secret of this very start."""
    return [re.sub(f"{arguments.KEY}=.*", f"{arguments.KEY}={arguments.SHOWN}", word) for word in argv]


def test_up_starts_the_processes_that_its_dry_run_tells(own: Path, tmp_path: Path) -> None:
    where = [STACK, "--runtime", "local", *free_ports()]
    listed: dict[str, Any] = json.loads(labctl("up", *where, "--dry-run", "--json", root=own).stdout)
    assert files_of(own / ".labs", tmp_path / "cache") == set()
    done = labctl("up", *where, "--verbose", root=own)
    assert ran(done.stderr) == [command_line(command["argv"], command["env"]) for command in listed["commands"]]
    record = LocalRuntime(Workspace(own, tmp_path / "cache")).find(STACK)
    assert record
    server = psutil.Process(record.server["pid"])
    (command,) = listed["commands"]
    keeper = server.parent()
    assert keeper and told(keeper.cmdline()) == command["argv"]
    assert told(server.cmdline()) == command["argv"][command["argv"].index("--") + 1 :]
    assert command["env"].items() <= server.environ().items()
    assert [name for name in listed["files"] if not Path(name).exists()] == []
    assert oct(Path(own, ".labs", STACK, "server.log").stat().st_mode & 0o777) == "0o600"
    regions = [
        path
        for path in Path("/dev/shm").iterdir()
        if str(path) in LocalRuntime(Workspace(own, tmp_path / "cache")).leftovers(STACK)
    ]
    assert regions
    assert [path for path in regions if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_run_does_what_its_dry_run_lists_phase_by_phase(own: Path, tmp_path: Path, shared: bool) -> None:
    if shared:
        share_server(own)
    where = ["faults", "--runtime", "local", *free_ports()]
    listed = labctl("run", *where, "--dry-run", root=own).stdout
    done = labctl("run", *where, "--verbose", root=own)
    (out,) = (own / "results" / "99-faults").iterdir()
    told = [line.replace("/TIME", f"/{out.name}") for line in listed.splitlines()]
    shown = [line.partition("/")[0].strip() and line for line in told if line.startswith("  $ ")]
    commands = ran(done.stderr)
    assert len(shown) == len(commands) == 3
    assert [line.removeprefix("  $ ") for line in shown] == commands
    given = [line for line in told if line.startswith("  < ")]
    assert given == [line for line in done.stderr.splitlines() if line.startswith("  < ")]
    assert len(given) == shared, "a client that shares its process is a line for that"
