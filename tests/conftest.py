"""What all tests share: a home of their own, Docker where needed, groups of workers (docs/develop/testing.md)."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import foundry
import machinery
import pytest
from filelock import FileLock
from signal_stack import SignalStack
from timetable import Skipped, Timetable

from labctl.listener import Silent
from labctl.runtimes.processes import carry_out
from labkit import proxies
from labserve import serving

ROOT = Path(__file__).resolve().parents[1]
# Packages are installed uncompiled: every labctl that a test runs would compile what it imports anew (2 s each).
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
proxies.spare_loopback()  # servers of the tests are asked on loopback, by clients of all kinds
serving.later()  # as in a process that serves: importing transformers takes half as long
# Tests that use one of these fixtures share what it brought up.
CRASHED = pytest.StashKey[bool]()
RAN = ROOT / ".pytest_cache" / "ran"  # the tests that came to their end in the last run, for --rest
GROUPS = {"in_containers": "containers", "shared": "containers", "docker_services": "by-hand"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", action="store_true", help="print where the time went, by file")
    parser.addoption("--rest", action="store_true", help="only what the last run did not bring to its end")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker that died leaves tests that never ran; pytest calls it a failure like others."""
    if error:
        node.config.stash[CRASHED] = True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Leave the exit status for .ci/run: make has one of its own. "crashed": not all tests ran."""
    if not hasattr(session.config, "workerinput"):
        folder = ROOT / ".pytest_cache"
        folder.mkdir(exist_ok=True)
        crashed = session.config.stash.get(CRASHED, False)
        (folder / "exitstatus").write_text("crashed\n" if crashed else f"{int(exitstatus)}\n")
        ended = session.config.stash[ENDED]
        if not session.config.getoption("--rest"):
            RAN.write_text("\n".join(sorted(ended.names)) + "\n")


STACK = SignalStack()


def pytest_sessionstart() -> None:
    """Keep the stack that faulthandler gave this thread, or none."""
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(STACK))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Put the signal stack back: OpenVINO's CPU plugin sets its own, and frees it while it is still in use.

    Of two pipelines the first to go unmaps its stack, and the second puts that one back: the next signal, in whichever
    test raises one, would end the process. A pipeline that finds a stack not its own leaves it alone.
    """
    ctypes.CDLL(None).sigaltstack(ctypes.byref(STACK), None)


class Ended:
    """The tests that came to their end, whatever it was. A worker that dies leaves others."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.names.add(less_group(report.nodeid))


ENDED = pytest.StashKey[Ended]()


def less_group(name: str) -> str:
    """A test's name without the group that pytest-xdist appends."""
    return re.sub(r"@[\w-]+$", "", name)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[ENDED] = Ended()
        config.pluginmanager.register(config.stash[ENDED])
        config.pluginmanager.register(Skipped())
        if config.getoption("--times"):
            config.pluginmanager.register(Timetable())


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What goes to one worker: tests of one group, else what shares a fixture, else a file.

    A test with a checkout of its own shares nothing, so it goes to whichever worker is free.
    """
    if config.getoption("--rest"):
        ran = set(RAN.read_text().splitlines())
        items[:] = [item for item in items if item.nodeid not in ran]
    for item in items:
        names = getattr(item, "fixturenames", ())
        group = next((GROUPS[name] for name in names if name in GROUPS), None)
        if not group and ("own" not in names or "lab_server" in names):
            group = item.path.stem
        if group and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """A million objects of PyTorch's and of other packages are there: no later search for garbage looks at them."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """While a test marked ``alone`` runs, the other worker waits: its verdict is about times."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with contextlib.ExitStack() as held, (ROOT / "tests" / "machinery.py").open() as gate:
        turn = held.enter_context(Path(__file__).open())
        fcntl.flock(gate, fcntl.LOCK_EX)  # held while waiting: nobody overtakes a test that waits to be alone
        fcntl.flock(turn, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        gate.close()
        return (yield)


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees or changes the person's cache, token, terminal or Docker settings.

    Each can be interrupted: a shell's background job ignores Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("HF_TOKEN", "HF_ENDPOINT", "DOCKER_HOST", "NO_COLOR", "COLUMNS", "LABS_ROOT"):
        monkeypatch.delenv(name, raising=False)
    if console := sys.modules.get("labctl.cli.console"):
        console._working.clear()  # a line that an earlier test left unfinished


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch, where a test module has imported it, computes on one thread.

    The models are so small that a second thread only waits for the first, and the other workers need the other cores.
    """
    if "torch" not in sys.modules:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of weights for the whole session (LABS_TEST_CACHE keeps one between sessions)."""
    # A folder in pytest's, which is the caller's alone: a server in a container may be nobody.
    folder = Path(os.environ.get("LABS_TEST_CACHE") or of_all_workers(tmp_path_factory) / "cache" / "labs")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LABS_CACHE"] = str(folder)
    return folder


def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This run's temporary folder, the same in every worker."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def engines_made(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The engines of most stacks are in the cache."""
    with FileLock(of_all_workers(tmp_path_factory) / "foundry.lock"):  # by one worker
        foundry.make(cache)


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    """A Docker engine. Where LABS_REQUIRE_DOCKER is set its absence is a failure, elsewhere a reason to skip."""
    client = machinery.engine()
    if isinstance(client, str):
        if os.environ.get("LABS_REQUIRE_DOCKER"):
            pytest.fail(f"LABS_REQUIRE_DOCKER is set, but: {client}")
        pytest.skip(client)
    return client


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as it is now: whoever goes on working in it does not disturb the tests."""
    return machinery.copy_of_the_checkout(tmp_path_factory.mktemp("snapshot") / "checkout")


@pytest.fixture(scope="session")
def images(engine: docker.DockerClient, snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The images of this checkout's sources, built unless they are there (the first time takes minutes)."""
    with FileLock(of_all_workers(tmp_path_factory) / "images.lock"):  # by one worker
        carry_out(machinery.runtime(snapshot).prepare("cpu"), Silent())
