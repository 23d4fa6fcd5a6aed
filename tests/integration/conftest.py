"""Real servers for the integration tests: the local runtime, brought up once per combination of settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from browsing import browser
from checkout import ROOT
from lab_server import LabServer
from layer import require_vllm
from machinery import PARTS, labctl, started, taken_down

from labctl.stack import faults
from labctl.triton import server_api

__all__ = ["browser"]
VLLM_STACKS = ("vllm-backend",)
WITHOUT_ENGINES = ("iterative", "scaled")
UP: dict[str, tuple[str, LabServer]] = {}  # by stack: how it was asked for, and its server


@pytest.fixture(autouse=True)
def unstuck(checkout: Path) -> Iterator[None]:
    """A server that a test has left stuck is restarted, where it was: the tests after it have nothing to do with that.
    Of one that has ended, a test that fails shows the log.

    Triton 2.51's gRPC front can lock itself up (seen once): a thread that reads a stream and one that answers on it
    take the same two mutexes in opposite order. Every model behind it then waits for ever.
    """
    yield
    for stack, (_, server) in UP.items():
        if not server_api.is_live(server.http):
            print(f"{stack} has ended; its log ends so:\n{server.log_file.read_text(errors='replace')[-2000:]}")
        elif said := faults.stuck_sentences(server.run_dir):
            print(f"{stack} is restarted: {'; '.join(said)}")
            labctl("restart", stack, root=checkout)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the tests' own, by links: a person's stacks are not touched."""
    root = tmp_path_factory.mktemp("checkout")
    for name in (*PARTS, "scripts"):
        if (ROOT / name).exists():
            (root / name).symlink_to(ROOT / name)
    return root


@pytest.fixture(scope="session")
def lab_server(checkout: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., LabServer]]:
    """``lab_server("iterative", kv_cache=True)``: that stack with those settings, up.

    A stack that is up with other settings, or whose server has died, is taken down first; all are in the end. What did
    not come up once is not tried again.
    """
    up = UP
    failed: dict[tuple[str, str], Exception] = {}

    def bring(stack: str, *options: str, **settings: Any) -> LabServer:
        arguments = [*options, *_assignments(settings)]
        key = json.dumps(arguments)
        if stack in up:
            known, server = up[stack]
            if known == key and server_api.is_live(server.http):
                return server
            taken_down(checkout, stack)
        if settings.get("engine") == "vllm" or stack in VLLM_STACKS:
            require_vllm(request.getfixturevalue("cache"))
        elif stack not in WITHOUT_ENGINES:
            request.getfixturevalue("engines_made")
        if (stack, key) in failed:  # minutes each time: one test says it for all
            raise failed[stack, key]
        try:
            done = labctl("up", stack, "--json", "--runtime", "local", "--ports", "auto", *arguments, root=checkout)
        except Exception as error:
            failed[stack, key] = error
            raise
        shown = json.loads(done.stdout)
        folder = checkout / ".labs" / stack
        server = LabServer(
            **shown["endpoints"], run_dir=folder / "run", log_file=folder / "server.log", settings=shown["settings"]
        )
        up[stack] = (key, server)
        return server

    try:
        yield bring
    finally:
        taken_down(checkout, *up)


@pytest.fixture(scope="module")
def doors(checkout: Path, lab_server: Callable[..., LabServer]) -> Iterator[Callable[..., openai.OpenAI]]:
    """``doors("iterative")``: a client of OpenAI's, before that stack with these settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_BASE_URL", raising=False)
        there: dict[str, openai.OpenAI] = {}
        ends: list[Any] = []

        def open_door(stack: str, **settings: Any) -> openai.OpenAI:
            server = lab_server(stack, **settings)
            if server.grpc not in there:
                ends.append(running := started(checkout, "openai", stack, "--port", "auto", "--json"))
                said = running.__enter__().stdout
                assert said
                line = said.readline()
                there[server.grpc] = openai.OpenAI(base_url=json.loads(line)["openai"], api_key="none", max_retries=0)
            return there[server.grpc]

        yield open_door
        for client in there.values():
            client.close()
        for running in ends:
            running.__exit__(None, None, None)


def _assignments(settings: dict[str, Any]) -> Sequence[str]:
    pairs = []
    for key, value in sorted(settings.items()):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        pairs += ["--set", f"{key}={text}"]
    return pairs


@pytest.fixture
def own(checkout: Path, tmp_path: Path) -> Iterator[Path]:
    """A checkout for one test, in which nothing may be left."""
    root = tmp_path / "own"
    root.mkdir()
    for item in checkout.iterdir():
        if item.is_symlink():
            (root / item.name).symlink_to(item.readlink())
    try:
        yield root
    finally:
        taken_down(root)


@pytest.fixture
def copied_templates(own: Path) -> Path:
    """Lab 02's templates as files that a test may break."""
    folder = own / "templates"
    for source in (own / "model_repos" / "iterative").rglob("*"):
        if source.is_file() and "__pycache__" not in source.parts:
            target = folder / source.relative_to(own / "model_repos" / "iterative")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return folder
