"""What all tests share: one known environment, a cache of their own, Docker where needed, groups of workers."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import foundry
import machinery
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from labctl.listener import Silent
from labkit import proxies
from labserve import serving

pytest_plugins = ("chaos",)  # --chaos SEED
# Tests that use one of these fixtures share what it brought up, and so a worker.
GROUPS = {"in_containers": "containers", "shared": "containers", "docker_services": "by-hand"}
# Of the caller's shell: what changes how Python, pip, Docker, the Hub or our own printing behave.
UNSET = """
    PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONIOENCODING PYTHONOPTIMIZE PYTHONPATH PYTHONSAFEPATH PYTHONSTARTUP
    PYTHONUNBUFFERED PYTHONUTF8 PYTHONWARNINGS PIP_PREFIX PIP_TARGET PIP_USER LANGUAGE LC_ALL LC_CTYPE
    HF_TOKEN HF_ENDPOINT DOCKER_HOST COLUMNS LINES NO_COLOR FORCE_COLOR LABS_ROOT
"""
SIGNALS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)


class SignalStack(ctypes.Structure):
    """stack_t of sigaltstack(2): where the main thread's signal handlers run."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


STACK = SignalStack()
# How long an example takes, or its making, says how busy this machine is; a fixture of a function serves all examples.
# They are the same in every run, so that nobody's first run is red by the draw; --chaos draws others, by its seed.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
settings.register_profile("same", CALM, derandomize=True)
settings.register_profile("drawn", CALM)


def pytest_configure(config: pytest.Config) -> None:
    """The same environment in a terminal, in the background, under nohup and in CI. Children inherit it.

    A shell's background job ignores SIGINT, and what a process ignores its children ignore, too.
    """
    seed = config.getoption("--chaos")
    settings.load_profile("same" if seed is None else "drawn")
    config.option.hypothesis_seed = seed if config.option.hypothesis_seed is None else config.option.hypothesis_seed
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    for name in UNSET.split():
        os.environ.pop(name, None)
    os.environ |= {"LANG": "C.UTF-8", "TERM": "xterm"}
    sys.dont_write_bytecode = False  # packages are installed uncompiled: every child would compile its imports anew
    proxies.spare_loopback()  # servers of the tests are asked on loopback, by clients of all kinds
    serving.defer_imports()  # as in a process that serves: importing transformers takes half as long


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


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What goes to one worker: tests of one group, else what shares a fixture, else a file.

    A test with a checkout of its own shares nothing, so it goes to whichever worker is free.
    """
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


@pytest.fixture(autouse=True)
def isolated() -> None:
    """No line that an earlier test left unfinished."""
    if console := sys.modules.get("labctl.cli.console"):
        console._working.clear()


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


@pytest.fixture(scope="session", autouse=True)
def engines_begun(
    request: pytest.FixtureRequest, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> foundry.Making | None:
    """The engines of most stacks are made beside the first tests, if there is a test that serves one."""
    asking = {"lab_server", "engines_made"}
    if not any(asking.intersection(getattr(item, "fixturenames", ())) for item in request.session.items):
        return None
    return foundry.Making(cache, of_all_workers(tmp_path_factory) / "foundry.lock")


@pytest.fixture(scope="session")
def engines_made(engines_begun: foundry.Making | None) -> None:
    """The engines of most stacks are in the cache."""
    if engines_begun:
        engines_begun.wait()


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
        machinery.runtime(snapshot).prepare(Silent(), "cpu")
