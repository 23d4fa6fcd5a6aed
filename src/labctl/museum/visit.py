"""Runs exhibits: each on a server of its own, judged by what its ``reproduce.py`` found there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import runpy
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.utils import InferenceServerException

from labctl import litter, unfinished
from labctl.museum.exhibit import Exhibit
from labctl.runtimes import bare, processes
from labctl.runtimes.processes import Command
from labctl.stack import ports
from labctl.triton import readiness, server_api
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.exhibit import CannotTell, ExhibitServer, Observation

STACK = "museum"  # the name by which the leftovers of a killed run are found
READY_S = 90.0
LIMIT_S = 240.0  # for one exhibit when several run
SHARED_MODEL = "sleeper.py"
REPRODUCES, MENDED, PASSES, FAILS = "reproduces", "mended", "passes", "fails"
CANNOT_TELL = "cannot tell here"


@dataclass(frozen=True)
class Visit:
    """One run. ``verdict``: reproduces, mended, or cannot tell here; with the work-around passes or fails."""

    number: str
    title: str
    wing: str
    workaround: bool
    expected: str
    measured: str
    verdict: str
    triton: str
    seconds: float


def reproduce_exhibit(workspace: Workspace, exhibit: Exhibit, workaround: bool = False, image: str = "") -> Visit:
    """Start the exhibit's server, run its ``reproduce.py``, kill the server, judge.

    ``image``: a Docker image on this machine that has ``tritonserver``; "" for Triton from the wheel. Raises LabError:
    no server can be started here at all.
    """
    began, version = time.monotonic(), ""
    try:
        with _serve(workspace, exhibit, workaround, image) as server:
            version = server_api.server_version(server.http)
            found = _judge(exhibit, server)
        measured = found.measured
        if workaround:
            verdict = FAILS if found.symptom else PASSES
        else:
            verdict = REPRODUCES if found.symptom else MENDED
    except CannotTell as reason:
        verdict, measured = CANNOT_TELL, str(reason)
    return _visit(exhibit, workaround, measured, verdict, version, time.monotonic() - began)


def run_all(
    workspace: Workspace, exhibits: Sequence[Exhibit], workaround: bool, image: str, at_once: int
) -> Iterator[Visit]:
    """Run exhibits in processes of their own, some at once; each verdict as it comes."""
    options = ["--workaround"] if workaround else []
    if image:
        options += ["--image", image]
    commands = [
        Command(
            [sys.executable, "-m", "labctl", "reproduce", exhibit.name, "--kills", "--json", *options],
            {"LABS_ROOT": str(workspace.root), "LABS_CACHE": str(workspace.cache)},
        )
        for exhibit in exhibits
    ]
    for index, out, why in processes.run_together(commands, at_once, LIMIT_S):
        try:
            yield Visit(**json.loads(out)[0])
        except (ValueError, TypeError, LookupError):
            yield _visit(exhibits[index], workaround, why, CANNOT_TELL, "", 0.0)


def _visit(exhibit: Exhibit, workaround: bool, measured: str, verdict: str, version: str, seconds: float) -> Visit:
    manifest = exhibit.manifest
    expected = f"not: {manifest.expects}" if workaround else manifest.expects
    return Visit(
        exhibit.number,
        manifest.title,
        manifest.wing,
        workaround,
        expected,
        " ".join(measured.split()),
        verdict,
        version,
        round(seconds, 1),
    )


@contextlib.contextmanager
def _serve(workspace: Workspace, exhibit: Exhibit, workaround: bool, image: str) -> Iterator[ExhibitServer]:
    """The exhibit's server, with every model READY; nothing of it is left after the block."""
    home = workspace.folder(STACK).path
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as cleaning:
        folder = cleaning.enter_context(unfinished.temporary_folder(home / exhibit.name))
        models = lay_out_exhibit(exhibit, folder / "repository", workaround)
        (endpoints,) = ports.free_endpoints(1)
        extra = exhibit.arguments(workaround)
        named = [argument.partition("=")[2] for argument in extra if argument.startswith("--load-model=")]
        if image:
            start = bare.bare_container(workspace, STACK, folder, endpoints, extra, image)
        else:
            start = bare.local(workspace, STACK, folder, endpoints, extra)
        started = cleaning.enter_context(start)
        try:
            readiness.wait_ready(
                endpoints.http,
                named or models,
                {},
                readiness.ServerOutside(lambda: started.ended() or None, lambda: started.log().splitlines()[-10:]),
                timeout=READY_S,
                progress=lambda text: None,
            )
        except LabError as error:
            last = "; ".join(error.details[-1:])
            raise CannotTell(f"the exhibit's server does not come up: {error.what} {error.why} {last}") from error
        yield ExhibitServer(endpoints.http, endpoints.grpc, endpoints.metrics, workaround, started.log, started.ended)


def lay_out_exhibit(exhibit: Exhibit, repository: Path, workaround: bool) -> list[str]:
    """Copy the exhibit's models, and return their names. One without a ``model.py`` gets the museum's shared one."""
    shutil.copytree(exhibit.folder / "models", repository, ignore=litter.ignore)
    if workaround and (exhibit.folder / "workaround").is_dir():
        shutil.copytree(exhibit.folder / "workaround", repository, ignore=litter.ignore, dirs_exist_ok=True)
    for model in sorted(repository.iterdir()):
        config = (model / "config.pbtxt").read_text(encoding="utf-8")
        program = model / "1" / "model.py"
        program.parent.mkdir(exist_ok=True)
        if 'backend: "python"' in config and not program.exists():
            shutil.copy(exhibit.folder.parent / SHARED_MODEL, program)
    return sorted(model.name for model in repository.iterdir())


def _judge(exhibit: Exhibit, server: ExhibitServer) -> Observation:
    """The observation of the exhibit's program. Raises CannotTell, also if the server does not answer as expected."""
    try:
        return _program(exhibit)(server)
    except (LabError, InferenceServerException, OSError, ValueError, LookupError) as error:
        reason = str(error) or type(error).__name__
        if how := server.ended():
            reason += f"; the server ended: {how}"
        raise CannotTell(reason) from error


def _program(exhibit: Exhibit) -> Callable[[ExhibitServer], Observation]:
    """The function ``reproduce`` of an exhibit's ``reproduce.py``."""
    program: Callable[[ExhibitServer], Observation] = runpy.run_path(str(exhibit.folder / "reproduce.py"))["reproduce"]
    return program


def visits_json(visits: Sequence[Visit]) -> str:
    return json.dumps([dataclasses.asdict(visit) for visit in visits], indent=2)
