"""A broken manifest blocks only what is about its own lab."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error
from minimal_lab import MINIMAL, changed, write

from labctl.cli.main import cli
from labctl.listener import Silent
from labctl.manifest.catalog import Catalog, load_catalog
from labctl.runtimes.record import Endpoints, Record
from labctl.stack.session import Session
from labctl.workspace import Workspace


@pytest.fixture
def half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A checkout with a good lab and a broken one, of which a stack was brought up before it broke."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "model_repos").mkdir()
    write(tmp_path, "09-demo", MINIMAL)
    (tmp_path / "labs/09-demo/models/m/1").mkdir(parents=True)
    (tmp_path / "labs/09-demo/models/m/config.pbtxt").write_text('name: "m"')
    write(tmp_path, "10-mine", "schema: 1\nnumber: [")
    monkeypatch.setenv("LABS_ROOT", str(tmp_path))
    session = Session(Workspace.find(), Catalog(()), Silent())
    session.remember(Record("mine", "10-mine", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3")))
    return session


@pytest.mark.parametrize("command", [["status"], ["status", "mine"], ["down", "mine"], ["down", "--all"]])
def test_a_broken_manifest_blocks_neither_status_nor_down(half_written: Session, command: list[str]) -> None:
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert "left out: labs/10-mine/lab.yaml" in done.stderr
    assert "mine" in done.stdout
    assert (half_written.remembered("mine") is None) == (command[0] == "down")


def test_everything_else_still_refuses_a_broken_manifest(half_written: Session) -> None:
    done = CliRunner().invoke(cli, ["list"])
    is_lab_error(done.exception, "manifest-broken", "labs/10-mine/lab.yaml")


def test_a_command_about_one_lab_is_not_refused_for_another_lab_whose_manifest_is_broken(tmp_path: Path) -> None:
    stacks = {"another": MINIMAL["stacks"]["demo-stack"]}
    write(tmp_path, "08-other", changed(number="08", name="other", short="other", stacks=stacks, run=None))
    workspace = write(tmp_path, "09-demo", changed("*/repository", "./elsewhere"))
    catalog = load_catalog(workspace, at_use=True)
    assert catalog.stack("another")[1] == "another"
    for ask in (lambda: catalog.lab("demo"), lambda: catalog.labs, lambda: load_catalog(workspace)):
        with lab_error("manifest-broken", "09-demo/lab.yaml: stacks.demo-stack.repository"):
            ask()


def test_a_stack_that_nobody_knows_is_refused_with_the_broken_manifest_named(half_written: Session) -> None:
    done = CliRunner().invoke(cli, ["down", "nope"])
    is_lab_error(done.exception, "stack-unknown", "'nope'")
    assert "left out: labs/10-mine/lab.yaml" in done.stderr
