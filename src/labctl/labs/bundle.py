"""The content of ``labctl bundle create``: everything that the runs of some labs need, made beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labctl.bundle import pack
from labctl.labs.phases import resolve_phases
from labctl.manifest.schema import Lab
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import images
from labctl.runtimes.layers import layer
from labctl.stack.session import Session
from labctl.stack.up import make_artifact, refuse_unservable
from labctl.workspace import Workspace
from labkit.errors import LabError

PROFILE = "cpu"


def create(
    session: Session, labs: Sequence[Lab], target: Path, with_images: bool = False, layers: Sequence[str] = ()
) -> int:
    """Make what is missing, then write the bundle. Returns its size in bytes, and announces an estimate first.

    ``layers`` (runtimes/layers.py) must be installed. A note names each lab that needs another layer.

    Raises LabError: the file is there, something cannot be made or fetched, or there is no space.
    """
    if target.exists():
        raise LabError(f"{target} is already there", "", "remove it, or choose another name", code="bundle-exists")
    if not target.parent.is_dir():
        raise LabError(f"there is no folder {target.parent}", code="folder-missing")
    local = session.runtime("local")
    local.check(PROFILE)
    packages = [layer(name, session.workspace, PROFILE).require() for name in layers]
    plans = needed_plans(session, labs)
    for name in sorted({plan.stack.packages for plan in plans} - {"", *layers}):
        numbers = ", ".join(sorted({plan.lab.number for plan in plans if plan.stack.packages == name}))
        session.listener.note(f"lab {numbers} also needs --{name}, or a network")
    artifacts = {artifact.locate(session.workspace): artifact for plan in plans for artifact in plan.artifacts}
    missing = [artifact for artifact in artifacts.values() if not artifact.ready(session.workspace)]
    if with_images:
        compose = session.runtime("compose")
        compose.check(PROFILE)
        _only_what_is_packed(session.workspace)
    content = [*artifacts, *packages]
    session.listener.note(f"{target.name}: {pack.estimate(session.workspace, content, with_images, len(missing))}")
    for plan in plans:
        refuse_unservable(plan, local, session.workspace)
    local.prepare(session.listener, PROFILE)
    for artifact in artifacts.values():
        make_artifact(session, artifact, local)
    if missing:
        session.listener.note(f"{target.name}: {pack.estimate(session.workspace, content, with_images)}")
    names: list[str] = []
    if with_images:
        compose.prepare(session.listener, PROFILE)
        names = images.all_images(session.workspace, PROFILE)
    cached = [path for path in (*artifacts, *packages) if path.is_relative_to(session.workspace.cache)]
    return pack.write_bundle(target, session.workspace, [lab.number for lab in labs], cached, names, session.listener)


def _only_what_is_packed(workspace: Workspace) -> None:
    """Refuse sources that are not packed: images are named by a hash of all sources, and would not be found again."""
    packed = set(pack.checkout_files(workspace.root))
    if untracked := sorted(path for path in images.sources(workspace) if path not in packed):
        raise LabError(
            f"{untracked[0]} would be in the images, but not in the checkout that is packed",
            "git does not know it",
            f"git add {untracked[0]}, or move it away",
            code="bundle-untracked-file",
        )


def needed_plans(session: Session, labs: Sequence[Lab]) -> list[Plan]:
    """Every stack as it comes up by itself, and as it is in each phase of its lab's run."""
    local = session.runtime("local")
    plans = []
    for lab in labs:
        stacks = [(stack, Options(PROFILE)) for stack in lab.stacks]
        if lab.run:
            options = Options(PROFILE, runtime="local")
            phases = resolve_phases(session, lab, options, local, quick=False, only="")
            stacks += [(phase.phase.stack, phase.options) for phase in phases]
        plans += [make_plan(session.workspace, lab, name, options, local.server_path) for name, options in stacks]
    return plans
