"""The catalogue: a lab that cannot be read is refused with its file, line and reason, and blocks its own name alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error
from lab_programs import MINIMAL, write

from labctl.catalog import Catalog, load_catalog, load_lab
from labctl.cli.main import cli
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes.record import Endpoints, Record
from labctl.stack.session import Session
from labctl.workspace import Workspace

OTHER = MINIMAL.replace('short="demo"', 'short="other"').replace('"demo-stack"', '"another"')


@pytest.mark.parametrize("word", ["09", "9", "demo", "09-demo", "demo-stack"])
def test_a_lab_answers_to_all_its_names(tmp_path: Path, word: str) -> None:
    catalog = load_catalog(write(tmp_path))
    assert catalog.stack(word) == (catalog.labs[0], "demo-stack")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with lab_error("stack-unknown", "'nope'", "demo-stack"):
        load_catalog(write(tmp_path)).lab("nope")


@pytest.mark.parametrize(
    ("folder", "program", "told"),
    [
        ("09-demo", f"{MINIMAL}x = = 1\n", "line 14: SyntaxError"),
        ("09-demo", "import nothing_of_that_name", "line 1: ModuleNotFoundError"),
        ("09-demo", MINIMAL.replace("serve=serve", "serve=server"), "line 12: NameError"),
        ("09-demo", MINIMAL.replace("LAB =", "LABB ="), "it declares no LAB"),
        ("9-demo", MINIMAL, "its folder is called NN-name"),
        (
            "09-demo",
            f"from labctl.lab import setting\n{MINIMAL}\nsetting(2, '', ge=3)\n",
            "the default 2 is not within",
        ),
        (
            "09-demo",
            f"from labctl.lab import setting\n{MINIMAL}\nsetting(2, '', gpu=9, le=8)\n",
            "the default 9 is not",
        ),
    ],
    ids=["syntax", "import", "name", "none", "folder", "below", "above"],
)
def test_a_lab_that_cannot_be_read_is_refused_with_its_file_and_line(
    tmp_path: Path, folder: str, program: str, told: str
) -> None:
    catalog = load_catalog(write(tmp_path, folder, program))
    with lab_error("lab-broken", f"labs/{folder}/lab.py: ", told):
        catalog.lab("demo")


def test_a_stack_whose_serve_returns_nothing_is_refused_with_its_line(tmp_path: Path) -> None:
    workspace = write(tmp_path, program=MINIMAL.replace("return Served(", "Served("))
    with lab_error("lab-broken", "line 12: ", "demo-stack"):
        make_plan(workspace, load_catalog(workspace).lab("demo"), "demo-stack", Options())


def test_two_labs_may_not_share_a_name(tmp_path: Path) -> None:
    write(tmp_path)
    workspace = write(tmp_path, "10-other", OTHER.replace('"other"', '"demo-stack"'))
    with lab_error("lab-broken", "'demo-stack'", "10-other"):
        assert load_catalog(workspace).labs


def test_a_command_about_one_lab_is_not_refused_for_another_lab_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, "08-other", OTHER)
    catalog = load_catalog(write(tmp_path, "09-demo", "LAB ="))
    assert catalog.stack("another")[1] == "another"
    for ask in (lambda: catalog.lab("demo"), lambda: catalog.labs):
        with lab_error("lab-broken", "09-demo/lab.py"):
            ask()


def test_a_lab_that_was_edited_is_read_again_and_each_checkout_has_what_its_labs_share(tmp_path: Path) -> None:
    for name, short in (("one", "first"), ("two", "second")):
        workspace = write(tmp_path / name, program=f"from labs.shared.name import SHORT\n{MINIMAL}")
        (tmp_path / name / "labs/shared").mkdir()
        (tmp_path / name / "labs/shared/name.py").write_text(f'SHORT = "{short}"')
        lab = tmp_path / name / "labs/09-demo/lab.py"
        lab.write_text(lab.read_text().replace('short="demo"', "short=SHORT"))
        assert load_catalog(workspace).lab("09").short == short
    lab.write_text(lab.read_text().replace("short=SHORT", 'short="third one"'))
    assert load_catalog(workspace).lab("09").short == "third one"


def test_for_a_stack_that_is_up_its_lab_is_read_and_no_other(tmp_path: Path) -> None:
    write(tmp_path, "08-other", f"raise SystemExit\n{OTHER}")  # which nothing would survive
    workspace = write(tmp_path)
    assert load_lab(workspace, "09-demo", "demo-stack").short == "demo"
    with lab_error("stack-unknown", "'another'"):
        load_lab(workspace, "09-demo", "another")
    with lab_error("lab-broken", "07-gone"):
        load_lab(workspace, "07-gone", "demo-stack")


# -- commands beside a lab that cannot be read ------------------------------------------------------------------------


@pytest.fixture
def half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A checkout with a good lab and a broken one, of which a stack was brought up before it broke."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "model_repos").mkdir()
    write(tmp_path)
    (tmp_path / "labs/09-demo/models/m/1").mkdir(parents=True)
    (tmp_path / "labs/09-demo/models/m/config.pbtxt").write_text('name: "m"')
    write(tmp_path, "10-mine", "LAB = Lab(")
    monkeypatch.setenv("LABS_ROOT", str(tmp_path))
    session = Session(Workspace.find(), Catalog(()), Silent())
    session.remember(Record("mine", "10-mine", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3")))
    return session


@pytest.mark.parametrize("command", [["status"], ["status", "mine"], ["down", "mine"], ["down", "--all"]])
def test_a_broken_lab_blocks_neither_status_nor_down(half_written: Session, command: list[str]) -> None:
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert ("left out: labs/10-mine/lab.py" in done.stderr) == (command == ["status"]), "a record needs no lab"
    assert "mine" in done.stdout
    assert (half_written.remembered("mine") is None) == (command[0] == "down")


def test_everything_else_still_refuses_a_broken_lab(half_written: Session) -> None:
    done = CliRunner().invoke(cli, ["list"])
    is_lab_error(done.exception, "lab-broken", "labs/10-mine/lab.py")


def test_a_stack_that_nobody_knows_is_refused_with_the_broken_lab_named(half_written: Session) -> None:
    done = CliRunner().invoke(cli, ["down", "nope"])
    is_lab_error(done.exception, "stack-unknown", "'nope'")
    assert "left out: labs/10-mine/lab.py" in done.stderr
