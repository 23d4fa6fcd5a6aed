"""A running stack whose templates a person edits: what differs from what it serves, and loading only that anew."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl import repository, unfinished
from labctl.manifest.schema import Lab, Overlay, StackSpec
from labctl.plan import Plan, make_plan
from labctl.runtimes.base import Runtime
from labctl.runtimes.lock import hold_signals_back, stack_lock
from labctl.runtimes.record import Choices, Record
from labctl.stack import faults, shipped
from labctl.stack.faults import LOOP
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.triton import readiness, server_api
from labkit.errors import LabError

LOAD_S = 60.0  # a model that is not loaded by then will not be
LAYER_S = 300.0  # one with a layer of packages: vLLM's import takes 8 s on a quiet machine, and minutes on a busy one
UNDO_S = 15.0  # for the former version, on each server, where a person has interrupted or Triton does not answer


@dataclass(frozen=True)
class Edited:
    """One model whose files are not those that the running server has. ``files`` are the ones that a person edits."""

    model: str
    files: Sequence[Path]


def find_edits(stack: RunningStack) -> list[Edited]:
    """What was edited since the stack was brought up, or last reloaded. Raises LabError where it cannot be rendered."""
    with _render_fresh(stack.plan) as fresh:
        return _differences(stack.plan, fresh)


def edit_report(stack: RunningStack) -> list[dict[str, Any]]:
    """Every edited file of a running stack: its ``model``, ``file`` below the checkout, and whether it is ``loaded``.

    One that is not loaded differs from what the server has; one that is differs from what was shipped.
    """
    root = stack.session.workspace.root
    waiting = {path: edit.model for edit in find_edits(stack) for path in edit.files}
    changed = dict(_changed_files(stack.session, stack.plan))
    return [
        {"model": model, "file": below(path, root), "loaded": path not in waiting}
        for path, model in sorted({**changed, **waiting}.items())
    ]


def not_shipped(session: Session, plan: Plan) -> list[str]:
    """The files of a stack that are not as they were shipped, below the checkout."""
    return sorted(below(path, session.workspace.root) for path, _ in _changed_files(session, plan))


def templates(session: Session, lab: Lab, stack: str) -> dict[Path, str]:
    """The files that a person may edit, each with its model: what the stack that runs is made of.

    Of one that is down, all that it could be made of, with any settings: an edit may be why it does not come up.
    """
    if running := session.find(stack):
        origins = repository.origins(RunningStack.of(session, lab, *running).plan.request)
        return {path: place.split("/", 1)[0] for place, path in origins.items()}
    workspace, manifest = session.workspace, lab.stacks[stack]
    request = make_plan(workspace, lab, stack, Choices(), str).request
    layers: list[StackSpec | Overlay] = [manifest, *manifest.variants.values()]
    folders = dict.fromkeys(name for layer in layers for name in layer.repository)
    found: dict[Path, str] = {}
    for name in folders:
        source = dataclasses.replace(request, sources=[workspace.templates(lab.folder, name)], models=())
        found |= {path: place.split("/", 1)[0] for place, path in repository.origins(source).items()}
    return found


def section(files: Collection[str]) -> str:
    """The edited files as a part of report.md; "" where there are none."""
    if not files:
        return ""
    return "\n## Edited\n\nThe models were not as shipped:\n\n" + "".join(f"- `{file}`\n" for file in sorted(files))


def _changed_files(session: Session, plan: Plan) -> list[tuple[Path, str]]:
    """Each such file and its model; none where this checkout does not know what was shipped."""
    origins = repository.origins(plan.request)
    models = {path: place.split("/", 1)[0] for place, path in origins.items()}
    with contextlib.suppress(LabError):
        return [(path, models[path]) for path in shipped.edited_files(session.workspace, list(models))]
    return []


def below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def reload(session: Session, lab: Lab, stack: str, models: Sequence[str] = (), patience: float = LOAD_S) -> list[str]:
    """Load the edited models of a running stack anew, in place; the other models and the server stay.

    Args:
        models: these, edited or not.
        patience: seconds that one model may take.

    Returns:
        the models that were loaded.

    Raises:
        LabError: it is not up, a template is wrong (nothing is loaded), or a model cannot be loaded: then its former
            version serves on.
    """
    with stack_lock(session.workspace, stack, "reload"):
        runtime, record = session.require_up(stack)
        if unknown := [model for model in models if model not in record.models]:
            raise LabError(f"{stack} has no model '{unknown[0]}'", f"it has: {', '.join(record.models)}")
        return load_differing(
            session, RunningStack.of(session, lab, runtime, record).plan, runtime, record, models, patience
        )


def load_differing(
    session: Session, plan: Plan, runtime: Runtime, record: Record, models: Sequence[str] = (), patience: float = LOAD_S
) -> list[str]:
    """Load anew what a running stack has otherwise than ``plan``, with its lock held. All else as :func:`reload`."""
    with _render_fresh(plan) as fresh:
        if spare := repository.spare(plan.request) if plan.request.spare else []:
            session.listener.note(repository.without_effect(spare))
        wanted = list(models) or [edit.model for edit in _differences(plan, fresh)]
        for model in wanted:
            session.listener.step(f"loading {model}")
            _load(session, plan, runtime, record, fresh, model, max(patience, LAYER_S if plan.stack.packages else 0.0))
            session.listener.done("READY")
    return wanted


@contextlib.contextmanager
def _render_fresh(plan: Plan) -> Iterator[Path]:
    """The repository as it would be rendered now, beside the one that is served (one rename away)."""
    output = plan.request.output
    with unfinished.making(output) as folder:
        repository.render(dataclasses.replace(plan.request, output=folder / output.name))
        yield folder / output.name


def _differences(plan: Plan, fresh: Path) -> list[Edited]:
    served, origins = plan.request.output, repository.origins(plan.request)
    edited = []
    for model in plan.stack.models:
        names = {name for root in (fresh, served) for name in _names(root / model)}
        changed = sorted(name for name in names if not _same(fresh / model / name, served / model / name))
        if changed:
            files = [origins.get(f"{model}/{name}", served / model / name) for name in changed]
            edited.append(Edited(model, files))
    return edited


def _names(folder: Path) -> set[str]:
    """Every file below the folder but what Python compiled there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in paths}


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _load(
    session: Session, plan: Plan, runtime: Runtime, record: Record, fresh: Path, model: str, patience: float
) -> None:
    """Swap the model's folder in and have Triton load it; on failure the former folder comes back."""
    key = session.workspace.folder(record.stack).read_secret()
    explain = faults.explainer(plan, runtime)
    served = plan.request.output / model
    former = fresh.parent / f"{model}.former"
    loaded: list[str] = []  # the servers that have it, or may have it

    def undo(patience: float) -> str:
        """Bring the former version back, and say which version serves then."""
        serves = f"the version of {model} that was loaded before serves on"
        if former.exists():
            newest = _newest(served)
            shutil.rmtree(served, ignore_errors=True)
            former.rename(served)
            if loaded:  # the former version has to be loaded again
                _make_newer(served, newest)
        for http in loaded:
            try:
                server_api.load_model(http, model, patience, key)
            except LabError:
                serves = f"{model} may be served as it was edited; to be sure: labctl restart {plan.name}"
        return serves

    try:
        served.rename(former)
        (fresh / model).rename(served)
        _make_newer(served, _newest(former))
        for server in record.servers:  # one after the other: meanwhile the others serve
            http, number = server.endpoints.http, record.folder(server.number)
            loaded.append(http)
            try:
                server_api.load_model(http, model, patience, key)
            except LabError as refusal:
                if not isinstance(refusal.__cause__, server_api.Unreachable):
                    loaded.pop()  # Triton keeps what it has; where it did not answer, it may be loading still
                raise
            if probe := plan.stack.probes.get(model):
                run_dir = session.workspace.folder(record.stack).run_dir(number)
                readiness.probe(http, model, probe, patience, faults.stuck_check(run_dir, model))
    except LabError as error:
        serves = undo(min(patience, UNDO_S) if isinstance(error.__cause__, server_api.Unreachable) else patience)
        why = error.why
        if "failed to poll" in why:  # what is wrong with a config.pbtxt stands only in the log
            why = readiness.refusals(runtime.logs(record.stack)).get(model, why)
        mine = faults.explain_error(LabError(error.what, why), explain)
        remedy = f"correct it, then labctl reload {record.stack}; or labctl undo {record.stack} {model}"
        if LOOP in why:  # the former version serves, but Triton cannot end the one that never comes back
            remedy = f"correct it, or labctl undo {record.stack} {model}; then labctl restart {record.stack}"
        raise LabError(mine.what, mine.why, remedy, details=[serves]) from error
    except BaseException:  # Ctrl-C or SIGTERM: the server may be loading it just now
        with hold_signals_back():
            session.listener.note(f"interrupted: the former version of {model} comes back")
            session.listener.note(undo(min(patience, UNDO_S)))
        raise


def _newest(folder: Path) -> int:
    """When something in a folder was last changed, in nanoseconds; 0 where there is none."""
    return max((path.lstat().st_mtime_ns for path in (folder, *folder.rglob("*")) if path.exists()), default=0)


def _make_newer(folder: Path, than: int) -> None:
    """Triton loads only what is newer than what it has. The clock of the machine may have been set back since."""
    moment = max(time.time_ns(), than + 10**6)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, ns=(moment, moment), follow_symlinks=False)


def change_model(session: Session, lab: Lab, stack: str, model: str, load: bool, timeout: float = LOAD_S) -> int:
    """Load or unload a model on every server of a stack, one after the other: the others serve meanwhile.

    Returns:
        the number of servers.

    Raises:
        LabError: some of them did not; it says which, and why.
    """
    runtime, record = session.require_up(stack)
    if model not in record.models:
        raise LabError(f"{stack} has no model '{model}'", f"it has: {', '.join(record.models)}")
    key, failed = session.workspace.folder(stack).read_secret(), {}
    probe = RunningStack.of(session, lab, runtime, record).plan.stack.probes.get(model)
    with stack_lock(session.workspace, stack, "load" if load else "unload"):
        for server in record.servers:
            http = server.endpoints.http
            where = f" on replica {server.number}" if record.balance else ""
            session.listener.step(f"{'loading' if load else 'unloading'} {model}{where}")
            try:
                if load:
                    server_api.load_model(http, model, timeout, key)
                    if probe:
                        readiness.probe(http, model, probe, timeout)
                else:
                    server_api.unload_model(http, model, timeout, key)
                session.listener.done("READY" if load else "gone")
            except LabError as error:
                failed[server.number] = f"{error.what}: {error.why}" if error.why else error.what
                session.listener.done("failed")
    if failed:
        done = len(record.servers) - len(failed)
        verb = "loaded" if load else "unloaded"
        raise LabError(
            f"{model} was {verb} by {done} of {len(record.servers)} servers of {stack}",
            "",
            f"labctl status {stack}; labctl restart {stack} starts again what has died",
            details=[f"replica {number}: {why}" for number, why in failed.items()],
        )
    return len(record.servers)
