"""A running stack whose templates a person edits: what differs from what it serves, and loading only that again."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from labctl import repository
from labctl.lab import Lab
from labctl.plan import Plan
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Record
from labctl.stack import faults, shipped
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack
from labctl.triton import readiness, server_api
from labkit.errors import LabError
from labkit.waiting import attempts

LOG_S, LOOK_S = 1.0, 0.05  # seconds until Triton's words about a load stand in its log
LOAD_S = 60.0  # a model that is not loaded by then will not be
LAYER_S = 300.0  # a model with a layer of packages: importing vLLM takes 8 s, and minutes on a busy machine
UNDO_S = 15.0  # for loading the former version on each server, after an interrupt or without an answer of Triton


class EditedFile(TypedDict):
    """An edited file, below the checkout, and whether the server has loaded it as it is now."""

    model: str
    file: str
    loaded: bool


def find_edits(stack: PlannedStack) -> dict[str, list[Path]]:
    """What a person has edited since the stack was brought up or last reloaded: the files of each model.

    The models are in the order in which they can be loaded: an ensemble comes after its members. Raises LabError where
    it cannot be rendered.
    """
    found = repository.find_differences(stack.plan.request)
    return {model: found[model] for model in stack.plan.served.models if model in found}


def edit_report(stack: PlannedStack) -> list[EditedFile]:
    """Every edited file of a running stack, and whether the server has it.

    A file that is not loaded differs from what the server has; a loaded one differs from what was shipped.
    """
    root = stack.session.workspace.root
    waiting = {path: model for model, files in find_edits(stack).items() for path in files}
    return [
        {"model": model, "file": relative_name(path, root), "loaded": path not in waiting}
        for path, model in sorted({**_changed_files(stack.session, stack.plan), **waiting}.items())
    ]


def not_shipped(session: Session, plan: Plan) -> list[str]:
    """The files of a stack that are not as they were shipped, below the checkout."""
    return sorted(relative_name(path, session.workspace.root) for path in _changed_files(session, plan))


def edits_section(files: Collection[str]) -> str:
    """The edited files as a part of report.md; "" where there are none."""
    if not files:
        return ""
    return "\n## Edited\n\nThe models were not as shipped:\n\n" + "".join(f"- `{file}`\n" for file in sorted(files))


def _models(request: repository.RenderRequest) -> dict[Path, str]:
    """The model of each file of a person's that goes into a repository."""
    return {path: place.partition("/")[0] for place, path in repository.origins(request).items()}


def _changed_files(session: Session, plan: Plan) -> dict[Path, str]:
    """Each file that is not as shipped, and its model; none where this checkout does not know what was shipped."""
    models = _models(plan.request)
    with contextlib.suppress(LabError):
        return {path: models[path] for path in shipped.edited_files(session.workspace, list(models))}
    return {}


def relative_name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def reload(session: Session, lab: Lab, stack: str, models: Sequence[str] = (), patience: float = LOAD_S) -> list[str]:
    """Load the edited models of a running stack again, in place; the other models and the server stay.

    Args:
        models: these, edited or not.
        patience: seconds that one model may take.

    Returns the models that were loaded. Raises LabError: it is not up, a template is wrong (nothing is loaded), or
    a model cannot be loaded: then its former version serves on.
    """
    with stack_lock(session.workspace, stack, "reload"):
        running = RunningStack.require_up(session, stack).in_lab(lab)
        for model in models:
            _require_model(running.record, model)
        return load_differing(running, models, patience)


def _require_model(record: Record, model: str) -> None:
    if model not in record.models:
        raise LabError(
            f"{record.stack} has no model '{model}'", f"it has: {', '.join(record.models)}", code="model-unknown"
        )


def load_differing(stack: RunningStack, models: Sequence[str] = (), patience: float = LOAD_S) -> list[str]:
    """Load again each model that differs from a running stack's plan; the caller has its lock. See :func:`reload`."""
    plan, listener = stack.plan, stack.session.listener
    if spare := repository.unused_parameters(plan.request) if plan.request.spare else []:
        listener.note(repository.without_effect(spare))
    wanted = [*models] or [*find_edits(stack)]
    if wanted:
        with _render_fresh(plan) as fresh:
            for model in wanted:
                listener.step(f"loading {model}")
                _load(stack, fresh, model, max(patience, LAYER_S if plan.served.packages else 0.0))
                listener.done("READY")
    return wanted


@contextlib.contextmanager
def _render_fresh(plan: Plan) -> Iterator[Path]:
    """Render the repository again, beside the served one, so that a rename swaps a model's folder."""
    fresh = plan.request.output.with_name("fresh")
    try:
        repository.render_repository(replace(plan.request, output=fresh))
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _load(stack: RunningStack, fresh: Path, model: str, patience: float) -> None:
    """Swap the model's folder in and have Triton load it; on failure the former folder comes back."""
    session, plan, record, name = stack.session, stack.plan, stack.record, stack.name
    key, probe = stack.folder.read_secret(), stack.plan.served.probes.get(model)
    served = plan.request.output / model
    former = fresh / f"{model}.former"
    loaded: list[str] = []  # the servers that have the new version, or may have it

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
                serves = f"{model} may be served as it was edited; to be sure: labctl restart {name}"
        return serves

    refused = len(_refusals(stack, model))
    try:
        served.rename(former)
        (fresh / model).rename(served)
        _make_newer(served, _newest(former))
        for server in record.servers:  # one after the other: meanwhile the others serve
            loaded.append(server.endpoints.http)
            try:
                load = functools.partial(server_api.load_model, loaded[-1], model, patience, key)
                readiness.start_once_more(load, session.listener.note)
            except LabError as refusal:
                if not isinstance(refusal.__cause__, server_api.Unreachable):
                    loaded.pop()  # Triton keeps the former version; without an answer it may still be loading
                raise
            if probe:
                run_dir = stack.folder.run_dir(record.folder(server.number))
                readiness.probe(loaded[-1], model, probe, patience, faults.stuck_check(run_dir, model))
    except LabError as error:
        serves = undo(min(patience, UNDO_S) if isinstance(error.__cause__, server_api.Unreachable) else patience)
        why = _cause(stack, model, error, refused)
        explain = faults.stack_explainer(stack)
        remedy = f"correct it, then labctl reload {name}"
        if faults.LOOP in why:  # the former version serves, but Triton cannot end an import that never returns
            remedy = f"correct it, then labctl restart {name}"
        raise LabError(explain(error.what), explain(why), remedy, details=[serves], code=error.code) from error
    except BaseException:  # Ctrl-C or SIGTERM: the server may be loading it just now
        session.listener.note(f"interrupted: the former version of {model} comes back")
        session.listener.note(undo(min(patience, UNDO_S)))
        raise


def _refusals(stack: PlannedStack, model: str) -> list[str]:
    """Why Triton refused the model's configuration, each time; a log line may come after the client's answer."""
    with contextlib.suppress(LabError):  # there is no log yet
        return [why for name, why in readiness.each_refusal(stack.runtime.logs(stack.name)) if name == model]
    return []


def _cause(stack: PlannedStack, model: str, error: LabError, refused: int) -> str:
    """What Triton says of a failed load, or where it says nothing, its log: ``refused`` are the refusals before.

    Raises LabError: the server has aborted.
    """
    unreachable = isinstance(error.__cause__, server_api.Unreachable)
    if unreachable and readiness.aborted(faults.whole_log(stack.runtime, stack.name)):
        remedy = f"labctl up {stack.name}, with less running"
        raise LabError(error.what, readiness.ABORTED_WHY, remedy, code=readiness.ABORTED) from error
    if "failed to poll" in error.why:  # what is wrong with a config.pbtxt stands only in the log
        for _ in attempts(LOG_S, LOOK_S):
            if len(refusals := _refusals(stack, model)) > refused:
                return refusals[-1]
    return error.why


def _newest(folder: Path) -> int:
    """When something in a folder was last changed, in nanoseconds; 0 where there is none."""
    return max((path.lstat().st_mtime_ns for path in (folder, *folder.rglob("*")) if path.exists()), default=0)


def _make_newer(folder: Path, than: int) -> None:
    """Triton loads only what is newer than what it has. The clock of the machine may have been set back since."""
    moment = max(time.time_ns(), than + 10**6)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, ns=(moment, moment), follow_symlinks=False)
