"""Triton's own tests of its OpenAI frontend (python/openai/tests), run by pytest in this process on another server.

Those tests start upstream's server themselves. What they import for that stands here instead: each "server" is the one
that is already up, and each client is a client of it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import openai
import pytest

from labkit.errors import LabError

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """The result of one test; ``reason`` is empty if it passed."""

    test: str
    result: str
    reason: str = ""


class Judge:
    """A pytest plugin: leaves out the tests that do not apply, and keeps an outcome for each test.

    A test that fails because the server's model cannot do what it asks for does not apply either: the server says so,
    with the code ``unsupported_parameter``.
    """

    def __init__(self, beyond: dict[str, str]) -> None:
        self._beyond = beyond
        self._loop = asyncio.new_event_loop()  # one for all tests: an asynchronous client keeps its connections
        self._unable = ""  # what the server said that its model cannot do, in the running test
        self.outcomes: list[Outcome] = []

    def hear(self, error: object) -> None:
        """Take note of an error of the server's, in OpenAI's form."""
        if isinstance(error, dict) and error.get("code") == "unsupported_parameter":
            self._unable = str(error.get("message"))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = []
        for item in items:
            reason = next((why for part, why in self._beyond.items() if re.search(part, item.nodeid)), "")
            if reason:
                self.outcomes.append(Outcome(_name(item.nodeid), NOT_APPLICABLE, reason))
            else:
                kept.append(item)
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run an asynchronous test, as pytest-asyncio does where it is installed."""
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        wanted = inspect.signature(pyfuncitem.obj).parameters
        self._loop.run_until_complete(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes.append(
                Outcome(_name(report.nodeid), FAILED, f"not collected: {_first_error(report.longreprtext)}")
            )

    def pytest_runtest_setup(self) -> None:
        self._unable = ""

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        if call.excinfo and isinstance(call.excinfo.value, openai.APIError):
            self.hear(call.excinfo.value.body)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _name(report.nodeid)
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
            self.outcomes.append(Outcome(name, NOT_APPLICABLE, f"upstream skips it: {why.removeprefix('Skipped: ')}"))
        elif report.failed and self._unable:
            self.outcomes.append(Outcome(name, NOT_APPLICABLE, self._unable))
        elif report.failed:
            self.outcomes.append(Outcome(name, FAILED, _first_error(report.longreprtext)))
        elif report.when == "call":
            self.outcomes.append(Outcome(name, PASSED))


def find(folder: Path) -> list[Path]:
    """The files of upstream's tests. Raises LabError: the folder does not hold them."""
    files = sorted(folder.resolve().glob("test_*.py"))
    if folder.resolve().name != "tests" or not (folder / "conftest.py").is_file() or not files:
        raise LabError(
            f"{folder} does not hold the tests of Triton's OpenAI frontend",
            "it must be python/openai/tests of a checkout of triton-inference-server/server",
            "git clone --depth 1 https://github.com/triton-inference-server/server",
            code="tests-missing",
        )
    return files


def run(files: list[Path], url: str, model: str, absent: dict[str, str], beyond: dict[str, str]) -> list[Outcome]:
    """The outcomes of these tests of upstream's, asked of the server at ``url`` (without a path).

    Args:
        files: of :func:`find`.
        model: that the tests ask.
        absent: files that are left out, with the reason.
        beyond: patterns of the names of tests that are left out, with the reason.
    """
    outcomes = [Outcome(one.name, NOT_APPLICABLE, absent[one.name]) for one in files if one.name in absent]
    judge = Judge(beyond)
    options = ["-q", "--tb=short", "--no-header", "--no-summary", "--continue-on-collection-errors"]
    options += ["-c", os.devnull, f"--rootdir={files[0].parents[1]}", "-p", "no:cacheprovider"]
    with _in_place_of_upstream(url, model, judge):
        pytest.main([*options, *(str(one) for one in files if one.name not in absent)], plugins=[judge])
    return outcomes + judge.outcomes


@contextmanager
def _in_place_of_upstream(url: str, model: str, judge: Judge) -> Iterator[None]:
    def hear(response: httpx.Response) -> None:
        if response.status_code == 400:
            response.read()
            judge.hear(response.json().get("error"))

    class Client(httpx.Client):
        """Stands for FastAPI's TestClient, which has upstream's application in its own process."""

        def __init__(self, app: object) -> None:
            super().__init__(base_url=url, timeout=PATIENCE_S, event_hooks={"response": [hear]})

    class Server:
        """Stands for upstream's server process."""

        def __init__(self, arguments: object) -> None:
            self.url_root = url

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def get_client(self) -> openai.OpenAI:
            return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

        def get_async_client(self) -> openai.AsyncOpenAI:
            return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    stands_in: dict[str, Any] = {
        "tritonserver": SimpleNamespace(Server=object),
        "fastapi.testclient": SimpleNamespace(TestClient=Client),
        "tests.utils": SimpleNamespace(
            OpenAIServer=Server,
            setup_server=lambda *_, **__: SimpleNamespace(stop=lambda: None),
            setup_fastapi_app=lambda *_, **__: None,
        ),
    }
    # The backend whose tests upstream has for log probabilities and seeds; the others expect them to be refused.
    environment = {"TEST_BACKEND": "vllm", "TEST_MODEL": model}
    with (
        mock.patch.dict(sys.modules, stands_in),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "dont_write_bytecode", True),
        mock.patch.object(sys, "path", list(sys.path)),
    ):
        yield


def _name(node: str) -> str:
    return node.removeprefix("tests/")


def _first_error(text: str) -> str:
    """The line of a traceback that says what was wrong."""
    lines = text.strip().splitlines() or ["no message"]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines[-1:])[0].removeprefix("AssertionError: ")
