"""Input that a person or a stranger may well give: refused in words, never a traceback."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import click
import pytest
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli import clock
from labctl.cli.main import cli
from labctl.options import Options
from labctl.pages.gate import is_own, objection
from labctl.plan import make_plan
from labctl.runtimes import docker_engine
from labctl.stack.session import Session
from labctl.stack.stack import has_sequences
from labctl.triton.arguments import receiver
from labctl.workspace import Workspace
from labkit.disk import replace_dir

BYTES = "caf\udce9"  # as Python reads bytes that are not UTF-8


@pytest.mark.parametrize("asked", ["otlp://[::1", "otlp://]", "otlp://h:99999"])
def test_an_address_with_half_a_bracket_is_refused(asked: str) -> None:
    with lab_error("trace-receiver-invalid"):
        receiver(asked)


@pytest.mark.parametrize("action", ["step", "slow"])
@pytest.mark.parametrize("amount", ["nan", "inf", "-inf", "many"])
def test_an_amount_that_is_no_number_is_wrong_usage(action: str, amount: str) -> None:
    with pytest.raises(click.UsageError, match="is not a number"):
        clock._amount(action, amount)


@pytest.mark.parametrize(
    "words",
    [
        ["infer", "iterative", "-p", BYTES],
        ["infer", "--endpoint", "127.0.0.1:1", "-m", BYTES, "-p", "Hi"],
        ["bench", "--endpoint", "127.0.0.1:1", "-m", BYTES],
        ["metrics", "--endpoint", f"{BYTES}:1"],
        ["up", "iterative", "--set", f"slo={BYTES}"],
        ["exercise", "check", BYTES],
    ],
)
def test_a_word_that_is_not_utf_8_is_wrong_usage(words: list[str]) -> None:
    assert CliRunner().invoke(cli, words).exit_code == 2


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:73537", "127.0.0.1:0", "127.0.0.1", "127.0.0.1:\u0661", "a:1,b:99999", ":1"]
)
@pytest.mark.parametrize(
    "words",
    [
        ["infer", "-m", "m", "-p", "Hi", "--endpoint"],
        ["bench", "-m", "m", "--endpoint", "127.0.0.1:1", "--metrics-endpoint"],
        ["metrics", "--endpoint"],
        ["openai", "-m", "m", "--endpoint"],
        ["chat", "iterative", "--endpoint"],
    ],
)
def test_an_address_without_a_port_that_there_is_asks_no_server(words: list[str], endpoint: str) -> None:
    assert CliRunner().invoke(cli, [*words, endpoint]).exit_code == 2


@pytest.mark.parametrize("variable", ["LABS_ROOT", "LABS_CACHE"])
def test_a_checkout_or_cache_whose_path_is_not_utf_8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    folder = tmp_path / BYTES
    (folder / "model_repos").mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    monkeypatch.setenv(variable, str(folder))
    with lab_error("path-not-text"):
        Workspace.find()


def test_replicas_of_a_template_that_is_not_utf_8_are_planned(session: Session, tmp_path: Path) -> None:
    """The rendering refuses it, with its file and byte."""
    copytree(session.workspace.model_repos / "iterative", tmp_path / "templates")
    with (tmp_path / "templates" / "iterative-gpt2" / "config.pbtxt").open("ab") as file:
        file.write(b"# caf\xe9")
    options = Options(templates=tmp_path / "templates")
    assert not has_sequences(make_plan(session.workspace, session.catalog.lab("iterative"), "iterative", options))


@pytest.mark.parametrize("origin", ["http://[::1", "null", "http://evil.example"])
def test_a_foreign_origin_is_refused_whatever_it_looks_like(origin: str) -> None:
    assert objection({"host": "127.0.0.1:7861", "origin": origin})
    assert not objection({"host": "127.0.0.1:7861", "origin": "http://127.0.0.1:7861"})


@pytest.mark.parametrize("host", ["192.0.2.7:7860", "[2001:db8::1]:7860", "evil.example:7860", ""])
def test_only_loopback_is_a_good_host_of_a_page(host: str) -> None:
    assert is_own("localhost:7860") and is_own("127.0.0.1:7860") and is_own("[::1]:7860")
    assert not is_own(host)


@pytest.mark.parametrize("text", ["", "\n", "Error while fetching server API version: "])
def test_an_engine_that_gives_no_reason_is_told_as_such(text: str) -> None:
    assert docker_engine._words(OSError(text)) == "it gives no reason"


def test_a_folder_takes_the_place_of_the_former_one_and_of_what_a_killed_maker_has_left(tmp_path: Path) -> None:
    for left in (".out.new", ".out.old"):
        (tmp_path / left / "half").mkdir(parents=True)
    for text in ("old", "new"):
        with replace_dir(tmp_path / "out") as fresh:
            (fresh / "a").write_text(text)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]
    assert (tmp_path / "out" / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
