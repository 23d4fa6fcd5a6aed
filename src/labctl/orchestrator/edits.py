"""A running stack whose templates a person edits: what differs from what it serves, and loading only that anew."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl import readiness, repository, secret
from labctl.errors import LabError
from labctl.manifest.schema import Lab
from labctl.orchestrator.lock import stack_lock
from labctl.orchestrator.plan import Choices, Plan, make_plan
from labctl.orchestrator.session import Session
from labctl.runtimes.base import Record, Runtime

LOAD_S = 60.0  # a model that is not loaded by then will not be


@dataclass(frozen=True)
class Edited:
    """One model whose files are not those that the running server has. ``files`` are the ones that a person edits."""

    model: str
    files: Sequence[Path]


def plan_of(session: Session, lab: Lab, runtime: Runtime, record: Record) -> Plan:
    """The plan of a stack that runs, with today's templates."""
    templates = Path(record.templates) if record.templates else None
    choices = Choices(record.profile, dict(record.settings), record.release, templates)
    return make_plan(session.workspace, lab, record.stack, choices, runtime.server_path)


def edited(session: Session, lab: Lab, runtime: Runtime, record: Record) -> list[Edited]:
    """What was edited since the stack was brought up, or last reloaded. Raises LabError where it cannot be rendered."""
    plan = plan_of(session, lab, runtime, record)
    with _fresh(plan) as fresh:
        return _differences(plan, fresh)


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
        running = session.find(stack)
        if running is None:
            raise LabError(f"{stack} is not up", "", f"labctl up {stack}")
        runtime, record = running
        if unknown := [model for model in models if model not in record.models]:
            raise LabError(f"{stack} has no model '{unknown[0]}'", f"it has: {', '.join(record.models)}")
        plan = plan_of(session, lab, runtime, record)
        with _fresh(plan) as fresh:
            wanted = list(models) or [edit.model for edit in _differences(plan, fresh)]
            for model in wanted:
                session.listener.step(f"loading {model}")
                _load(plan, runtime, record, fresh, model, patience, secret.read(session.workspace, stack))
                session.listener.done("READY")
        return wanted


@contextlib.contextmanager
def _fresh(plan: Plan) -> Iterator[Path]:
    """The repository as it would be rendered now, beside the one that is served (one rename away)."""
    output = plan.request.output
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.new-", dir=output.parent))
    try:
        yield repository.render(dataclasses.replace(plan.request, output=folder / output.name)).path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _differences(plan: Plan, fresh: Path) -> list[Edited]:
    served, origins = plan.request.output, repository.origins(plan.request)
    found = []
    for model in plan.stack.models:
        names = {name for root in (fresh, served) for name in _names(root / model)}
        changed = sorted(name for name in names if not _same(fresh / model / name, served / model / name))
        if changed:
            files = [origins.get(f"{model}/{name}", served / model / name) for name in changed]
            found.append(Edited(model, files))
    return found


def _names(folder: Path) -> set[str]:
    """Every file below the folder but what Python compiled there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in paths}


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _load(plan: Plan, runtime: Runtime, record: Record, fresh: Path, model: str, patience: float, key: str) -> None:
    """Swap the model's folder in and have Triton load it; on failure the former folder comes back."""
    served = plan.request.output / model
    former = fresh.parent / f"{model}.former"
    served.rename(former)
    (fresh / model).rename(served)
    try:
        readiness.load_model(record.endpoints.http, model, patience, key)
        if probe := plan.stack.probes.get(model):
            readiness.probe(record.endpoints.http, model, probe, patience)
    except LabError as error:
        shutil.rmtree(served, ignore_errors=True)
        former.rename(served)
        told = error.why
        if "failed to poll" in told:  # what is wrong with a config.pbtxt stands only in the log
            told = readiness.refusals(runtime.logs(record.stack)).get(model, told)
        why = in_your_files(told, plan, runtime)
        raise LabError(
            error.what, why, f"correct it, then labctl reload {record.stack}; or labctl undo {record.stack} {model}"
        ) from error


def in_your_files(text: str, plan: Plan, runtime: Runtime, names: Mapping[str, str] | None = None) -> str:
    """Triton's words with the paths of the rendered repository replaced by those that a person edits.

    Args:
        names: other names for files, by their path in the repository; else paths below the checkout.
    """
    root = runtime.server_path(plan.request.output)
    origins = repository.origins(plan.request)

    def mine(match: re.Match[str]) -> str:
        place = match["place"]
        if names and place in names:
            return names[place]
        origin = origins.get(place)
        return _short(origin) if origin else match[0]

    text = re.sub(re.escape(root) + r"/(?P<place>[\w./-]+)", mine, text)
    # A syntax error names only the file: "(model.py, line 28)".
    return re.sub(r"(?<![\w/.])(?P<place>[\w-]+/\d+/model\.py)", mine, text)


def _short(path: Path) -> str:
    parts = path.parts
    return "/".join(parts[parts.index("model_repos") :]) if "model_repos" in parts else str(path)
