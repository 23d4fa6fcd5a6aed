"""The command line as a contract: names, exit statuses, messages; no server is started here."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import lab_error
from machinery import of_its_own

from labctl import workspace
from labctl.cli import main as entry
from labctl.cli.commands import COMMANDS
from labctl.cli.main import cli
from labctl.runtimes.record import Endpoints, Record
from labctl.workspace import Workspace

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the test's own, made of links, with nothing up."""
    root = of_its_own(tmp_path).root
    monkeypatch.setenv("LABS_ROOT", str(root))
    return root


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Exit status, stdout and stderr of one command, through the one entry point, outside every checkout."""
    monkeypatch.chdir("/")
    before = signal.getsignal(signal.SIGTERM)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = entry.main(list(arguments))
        return code, *capsys.readouterr()

    yield command
    signal.signal(signal.SIGTERM, before)


SHOWS = {"numpy", "tritonclient"}  # more that is not needed to show what is there
NEVER = {"torch", "transformers", "openvino", "docker", "python_on_whales", "requests", "matplotlib"}


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ("--help", SHOWS | NEVER),
        ("list", SHOWS | NEVER),
        ("status", SHOWS | NEVER),  # also where no engine listens
        ("render inflight-batching --output {out}", NEVER),
    ],
)
def test_a_command_that_starts_nothing_loads_nothing_heavy(
    checkout: Path, tmp_path: Path, words: str, heavy: set[str]
) -> None:
    code = (
        "import sys; from labctl.cli.main import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    )
    argv = [sys.executable, "-c", code, *words.format(out=tmp_path / "out").split()]
    env = {**os.environ, "LABS_CACHE": str(tmp_path / "cache"), "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not heavy & {*done.stdout.splitlines()[-1].split()}


def every_command(group: click.Group, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from every_command(command, *words, name)


def test_every_command_and_every_option_says_what_it_does_and_names_its_value_in_words() -> None:
    for words, command in every_command(cli):
        assert command.help, words
        for option in command.params:
            if isinstance(option, click.Option):
                shown, text = option.get_help_record(click.Context(command)) or ("", "")
                assert text, (words, shown)
                assert not {"INTEGER", "FLOAT", "RANGE"} & set(shown.split()), (words, shown)


@pytest.mark.parametrize("example", [line for listed in COMMANDS.values() for line in listed.examples])
def test_an_example_of_the_help_is_one_that_the_command_line_accepts(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called: list[object] = []
    for _, command in every_command(cli):
        monkeypatch.setattr(command, "callback", lambda called=called, **values: called.append(values))
    for word in shlex.split(example):  # a file or folder that is to be read
        if "/" in word:
            Path(word).mkdir(parents=True)
    assert entry.main(shlex.split(example)) == 0
    assert called


@pytest.mark.parametrize("word", ["batching", "05", "inflight-batching"])
def test_a_lab_or_a_stack_is_listed_with_its_settings(run: Run, checkout: Path, word: str) -> None:
    code, out, _ = run("list", word)
    assert code == 0
    limit = out.partition("  max_batch_size\n")[2].partition("\n  max_input_len")[0]
    assert "here the engine's own limit on the running batch" in limit
    assert "only with engine=tensorrt-llm" in limit
    assert json.loads(run("list", word, "--json")[1])["short"] == "batching"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up"], "Missing argument"),
        (["nope"], "No such command"),
        (["down"], "name a stack, or say --all"),
        (["up", "iterative", "--timeout", "0"], "--timeout"),
        (["compare", "/"], "at least two results"),
        (["weights", "prune"], "name the sources"),
        (["bench", "iterative", "--concurrency", "0"], "at least 1"),
    ],
)
def test_a_command_line_that_is_none_is_told_in_words_with_exit_status_2(
    run: Run, checkout: Path, arguments: list[str], words: str
) -> None:
    code, out, err = run(*arguments)
    assert code == 2 and words in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("up nope", "stack-unknown", "nope"),
        ("render iterative --set kv_cash=false", "settings-unusable", "did you mean 'kv_cache'"),
        ("render iterative --set kv_cache=perhaps", "settings-unusable", "true or false"),
        ("weights pull shipped:nope --runtime local", "shipped-model-unknown", "nope"),
        ("weights pull /nowhere --runtime local", "model-folder-missing", "/nowhere"),
        ("engines build iterative --runtime local", "engine-none", "iterative"),
        ("infer iterative -m iterative-gpt2 -p x", "stack-not-up", "iterative"),
        ("metrics iterative", "stack-not-up", "iterative"),
        ("logs iterative", "log-missing", "iterative"),
    ],
)
def test_a_mistake_is_refused_by_the_name_of_what_is_wrong(
    checkout: Path, arguments: str, code: str, named: str
) -> None:
    with lab_error(code, named):
        CliRunner().invoke(cli, arguments.split(), catch_exceptions=False)


def test_render_needs_no_weights_no_docker_and_no_server(
    run: Run, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    code, _, err = run("render", "iterative", "--set", "model=random:gpt2", "--output", str(tmp_path / "r"))
    assert code == 0, err
    text = (tmp_path / "r" / "iterative-gpt2" / "config.pbtxt").read_text()
    assert "random-gpt2" in text
    assert "${" not in text
    assert not list((tmp_path / "cache").glob("weights/random-gpt2*"))


def test_what_is_rendered_for_local_processes_does_not_say_that_containers_may_run(
    run: Run, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABS_RUNTIME", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")  # no Docker engine answers there
    for batch in (4, 5):
        code, _, err = run("render", "iterative", "--set", f"max_batch_size={batch}")
        assert code == 0, err
    assert not (checkout / ".labs" / "iterative" / "compose.env").exists()


def test_status_of_what_is_not_up_is_absent(run: Run, checkout: Path) -> None:
    shown = json.loads(run("status", "iterative", "--json")[1])
    assert (shown["stack"], shown["state"], shown["models"]) == ("iterative", "absent", [])
    assert json.loads(run("status", "--json")[1]) == []


def test_a_stack_whose_server_is_gone_has_failed_and_down_clears_it(run: Run, checkout: Path) -> None:
    nowhere = Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    record = Record("iterative", "02-iterative-scheduling", "local", "cpu", {}, ["simple-gpt2"], nowhere)
    (checkout / ".labs" / "iterative").mkdir(parents=True)
    (checkout / ".labs" / "iterative" / "state.json").write_text(record.to_json())
    assert json.loads(run("status", "iterative", "--json")[1])["state"] == "failed"
    assert run("down", "iterative")[:2] == (0, "iterative is down\n")
    assert run("down", "iterative")[:2] == (0, "iterative was not up\n")


def test_outside_every_checkout_the_remedy_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABS_ROOT", raising=False)
    monkeypatch.setattr(workspace, "INSTALLED_FROM", Path("/nowhere"))
    monkeypatch.chdir("/")
    with lab_error("checkout-missing", "LABS_ROOT"):
        Workspace.find()


def test_outside_every_checkout_it_is_the_one_that_labctl_is_installed_from(run: Run) -> None:
    assert Workspace.find().root == ROOT
    assert run("list")[0] == 0


def test_a_root_that_is_none_is_not_replaced_by_another(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_ROOT", "/usr")
    code, _, err = run("list")
    assert code == 1 and "/usr is not inside a checkout" in err


def test_fault_5_without_an_engine_compose_is_refused_with_a_remedy_and_nothing_is_left(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with lab_error("docker-missing", "127.0.0.1:9", "--runtime local"):
        words = ["up", "iterative", "--runtime", "compose", "--ports", "auto"]
        CliRunner().invoke(cli, words, catch_exceptions=False)
    assert not list((checkout / ".labs").glob("*/state.json"))


@pytest.mark.parametrize(("raised", "status"), [(KeyboardInterrupt, 130), (entry.Terminated, 143)])
def test_interruption_and_termination_have_their_exit_statuses(
    monkeypatch: pytest.MonkeyPatch, raised: type[BaseException], status: int
) -> None:
    def ended(*args: object, **kwargs: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "invoke", ended)
    assert entry.main(["list"]) == status


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_list_of_labs_has_a_row_for_each_and_shows_every_title_whole(
    run: Run, checkout: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")  # nobody is asked
    code, out, _ = run("list")
    labs = json.loads(run("list", "--json")[1])
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line[:2].isdigit()] == [lab["number"] for lab in labs]
    assert {word for lab in labs for word in lab["title"].split()} <= set(out.split())
    assert max(map(len, out.splitlines())) <= width
