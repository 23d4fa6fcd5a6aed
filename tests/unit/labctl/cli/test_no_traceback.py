"""No argument, environment or locale ends a command in a traceback: what is wrong is a sentence, or wrong usage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkout import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machinery import of_its_own

from labctl.cli import main as entry

# Commands that start nothing, download nothing and remove nothing of anybody else's.
COMMANDS = [
    words.split()
    for words in (
        "list|status|infer|logs|reload|metrics|explain|predict|plan|compare|scale|"
        "clock|down|openai|"
        "exercise list|exercise show|exercise start|exercise solution|exercise reset|"
        "weights list|engines list|restart|render --output @/out"
    ).split("|")
]
NAMES = ["iterative", "batching", "codegen", "inflight-batching", "scaled", "llama", "02a"]
FILES = [f"@/{name}" for name in ("empty", "bytes", "deep.json", "list.json", "folder", "pipe", "circle", "closed")]
NOT_UTF_8 = st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)  # bytes, as Python reads them in a word
TEXTS = st.text(st.one_of(st.characters(codec="utf-8", exclude_characters="\0"), NOT_UTF_8), max_size=12)
VALUES = st.one_of(
    st.sampled_from(NAMES * 2),
    st.sampled_from(FILES),
    st.sampled_from(["", " ", "-", "--", ".", "..", "/", "~", "~nobody-there", "0", "-1", "1e999", "nan", "9" * 400]),
    st.sampled_from(["x" * 300, "a/" * 2500, "\udcff", "a\udc80b", "\x1b[31m", "\u202e", "é", "%s", "{}", "["]),
    st.sampled_from(["max_num_sequences=8", "max_num_sequences=\udcff", "=", "trace=otlp://[", "profile=gpu"]),
    TEXTS,
)
OPTIONS = st.sampled_from(
    "--json --set --profile --model -m -p -o -S --output --seed --runtime --ports --timeout --templates "
    "--gpu --trace --concurrency --requests --replica --slo --rate --diff --endpoint --port --help".split()
)
ENVIRONMENT = st.dictionaries(
    st.sampled_from(
        "COLUMNS LINES TERM NO_COLOR LANG LC_ALL LABS_CACHE HOME TMPDIR DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG "
        "CUDA_VISIBLE_DEVICES LABS_MEMORY PATH http_proxy no_proxy PAGER LABS_TORCH_INDEX HF_TOKEN HF_HOME TZ".split()
    ),
    st.one_of(
        st.sampled_from(["", "0", "-5", "abc", "~x", "/nowhere", "C", "\udcff", "x" * 5000, "@/empty", "@/circle"]),
        TEXTS.filter(lambda text: "/" not in text),
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of a test's own, and files of all kinds."""
    folder = tmp_path_factory.mktemp("place")
    (of_its_own(folder).root / ".gitignore").symlink_to(ROOT / ".gitignore")
    (folder / "empty").touch()
    (folder / "bytes").write_bytes(bytes(range(256)) * 20)
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "list.json").write_text('[null, {"input": null}, 1]')
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "circle").symlink_to("circle")
    (folder / "closed").mkdir(mode=0)
    yield folder
    (folder / "closed").chmod(0o700)


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str], dict[str, str]], int]:
    """A command in this process, in that checkout; whatever it raises is what a person would see as a traceback."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def call(words: list[str], env: dict[str, str]) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LABS_CACHE", str(place / "cache"))
            for name, value in env.items():
                patch.setenv(name, value.replace("@", str(place)))
            patch.setenv("LABS_ROOT", str(place / "checkout"))
            patch.chdir(place)
            patch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115, PTH123
            try:
                return entry.main([word.replace("@", str(place)) for word in words])
            finally:
                sys.stdin.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    return call


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    command=st.sampled_from(COMMANDS),
    arguments=st.lists(st.one_of(VALUES, st.tuples(OPTIONS, VALUES)), max_size=3),
    env=ENVIRONMENT,
)
def test_a_command_ends_with_a_status_of_its_own(
    run: Callable[[list[str], dict[str, str]], int],
    command: list[str],
    arguments: list[str | tuple[str, str]],
    env: dict[str, str],
) -> None:
    words = [word for part in arguments for word in ([part] if isinstance(part, str) else part)]
    assert run([*command, *words], env) in (0, 1, 2)


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(
    locale=st.sampled_from(["", "C", "POSIX", "C.UTF-8", "tr_TR.UTF-8", "de_DE.ISO-8859-1", "xx_XX", "\udcff"]),
    python=st.dictionaries(
        st.sampled_from(["PYTHONUTF8", "PYTHONCOERCECLOCALE"]), st.sampled_from(["0", "1"]), max_size=2
    ),
    encoding=st.sampled_from(["", "ascii", "latin-1", "utf-16", "utf-8:strict"]),
    words=st.one_of(
        st.sampled_from([["list"], ["up", "\xe4\U0001f600"], ["list", "--json"], ["--help"]]),
        st.lists(st.one_of(TEXTS, st.just("\udcff\x1b[2J")), max_size=2).map(lambda more: ["status", *more]),
    ),
)
def test_nor_in_any_locale_through_a_pipe(
    place: Path, locale: str, python: dict[str, str], encoding: str, words: list[str]
) -> None:
    env = {**os.environ, "LC_ALL": locale, "LABS_ROOT": str(place / "checkout"), **python}
    env |= {"PYTHONIOENCODING": encoding} if encoding else {}
    argv = [sys.executable, "-m", "labctl", *words]
    done = subprocess.run(argv, env=env, capture_output=True, check=False, timeout=120)
    assert done.returncode in (0, 1, 2)
    assert b"Traceback" not in done.stderr.replace(b"\0", b"") and b"\x1b[2J" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "package",
    [
        "numpy",
        "yaml",
        *(pytest.param(name, marks=pytest.mark.night) for name in "grpc tritonclient psutil rich".split()),
    ],
)
def test_a_package_that_another_environment_hides_is_named_with_its_variable(
    place: Path, tmp_path: Path, package: str
) -> None:
    """What numpy says where its compiled part is another Python's."""
    (tmp_path / package).mkdir()
    broken = f"raise ImportError('{package}._core.umath failed to import\\n' + 'advice ' * 200, name='{package}._core')"
    (tmp_path / package / "__init__.py").write_text(broken)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "LABS_ROOT": str(place / "checkout")}
    argv = [sys.executable, "-m", "labctl", "infer", "iterative", "-p", "Hi"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    # A compiled part that fails to load may print its own; none of it is ours, and the sentence comes last.
    assert "labctl/cli" not in done.stderr and len(done.stderr) < 2000
    assert "PYTHONPATH" in done.stderr or "iterative is not up" in done.stderr
