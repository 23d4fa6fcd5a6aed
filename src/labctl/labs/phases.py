"""The phases of a run, each with the settings that it will have, known before the first server starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labctl.manifest.schema import Lab, Phase
from labctl.manifest.settings import condition_holds, format_setting, resolve, same_value
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes.base import Runtime
from labctl.stack.session import Session
from labctl.stack.up import refuse_unservable
from labkit.errors import LabError


@dataclass(frozen=True)
class PhaseRun:
    """A phase with its stack's options. ``notes`` name the settings, a person's or the phase's, that do not hold."""

    phase: Phase
    options: Options
    notes: Sequence[str] = ()


def chosen_phases(lab: Lab, profile: str, quick: bool, only: str) -> list[Phase]:
    """The phases of a run. Raises LabError if there is none."""
    if lab.run is None:
        raise LabError(
            f"lab {lab.folder} has no run section", "", f"labctl up {next(iter(lab.stacks))}", code="lab-not-runnable"
        )
    phases = [phase for phase in lab.run.phases if only in ("", phase.stack) and profile in phase.profiles]
    if quick:
        phases = [phase for phase in phases if phase.quick]
    if not phases:
        what = f"for stack {only}" if only else f"on the {profile} profile"
        raise LabError(f"lab {lab.short} has no phase {what}", "", f"labctl run {lab.short}", code="phase-unknown")
    return phases


def resolve_phases(
    session: Session, lab: Lab, options: Options, runtime: Runtime, quick: bool, only: str
) -> list[PhaseRun]:
    """The phases of a run, each planned whole.

    A phase's own settings are what the phase is about: they win over a person's, with a note. A phase's settings that
    mean nothing with the person's are left out, and so is a phase that has no others.

    Raises LabError: a phase cannot be served, or every phase overrules a setting of the person's.
    """
    phases = chosen_phases(lab, options.profile, quick, only)
    _require_heeded(lab, options.set, phases)
    runs: list[PhaseRun] = []
    left_out: dict[str, str] = {}  # why, by the phase's name
    # A setting that means nothing with another one keeps its usual value, because others may depend on it.
    usual = {key: setting.parse(setting.default_for(options.profile)) for key, setting in lab.settings.items()}
    for phase in phases:
        stack_own = lab.stacks[phase.stack].settings_for(options.profile)
        settings = usual | resolve(lab.settings, options.profile, stack_own, options.set, what=f"stack {phase.stack}")
        # A run compares phases: whether one belongs to it follows from the lab's settings, not from its stack's own.
        of_lab = {**settings, **{key: usual[key] for key in stack_own if key not in options.set}}
        if not condition_holds(phase.settings_when, of_lab):
            values = ", ".join(f"{key}={format_setting(of_lab.get(key))}" for key in phase.settings_when)
            left_out[phase.name] = f"it means nothing with {values}"
            continue
        together = {**settings, **phase.set, "profile": options.profile}
        idle = [key for key in phase.set if not condition_holds(lab.settings[key].when, together)]
        phase_own = {key: value for key, value in phase.set.items() if key not in idle}
        notes = []
        for key in idle:
            why = ", ".join(f"{name}={format_setting(settings.get(name))}" for name in lab.settings[key].when)
            notes.append(f"phase {phase.name}: {key} is left out, it has no meaning with {why}")
        if phase.set and not phase_own:
            left_out[phase.name] = notes[0].partition(": ")[2]
            continue
        notes += [
            f"phase {phase.name} is about {key}={format_setting(value)}, whatever --set says"
            for key, value in phase_own.items()
            if _is_overruled(lab, options.set, key, value)
        ]
        phase_options = replace(options, set={**options.set, **phase_own})
        if phase.balanced:
            phase_options = replace(phase_options, replicas=phase.replicas, balance=phase.balance)
        plan = make_plan(session.workspace, lab, phase.stack, phase_options, runtime.server_path)
        refuse_unservable(plan, runtime, session.workspace)
        plan.files()  # raises if it cannot be rendered
        runs.append(PhaseRun(phase, phase_options, notes))
    names = {run.phase.name for run in runs}
    for name, why in left_out.items():
        if name not in names:  # for other values of settings there may be a phase of the same name
            session.listener.note(f"phase {name} is left out: {why}")
    if not runs:
        raise LabError(
            f"no phase of lab {lab.short} can be run with these settings",
            "",
            f"labctl run {lab.short}",
            code="phases-none",
        )
    return runs


def _require_heeded(lab: Lab, asked: Mapping[str, Any], phases: Sequence[Phase]) -> None:
    """Refuse a setting that every phase overrules."""
    for key, value in asked.items():
        overruling = [phase for phase in phases if key in phase.set and _is_overruled(lab, asked, key, phase.set[key])]
        if len(overruling) == len(phases):
            values = ", ".join(f"{phase.name} has {format_setting(phase.set[key])}" for phase in phases)
            raise LabError(
                f"{key}={value} would change nothing in this run",
                f"every phase sets it itself: {values}",
                f"leave it out, or: labctl bench {phases[0].stack} --set {key}={value}",
                code="setting-unheeded",
            )


def _is_overruled(lab: Lab, asked: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a person asked for another value than the phase has. A bad value is refused elsewhere."""
    try:
        return key in asked and not same_value(lab.settings[key].parse(asked[key]), lab.settings[key].parse(value))
    except ValueError:
        return False


def needed_plans(session: Session, labs: Sequence[Lab]) -> list[Plan]:
    """Every stack of these labs as it comes up by itself, and as it is in each phase of its lab's run."""
    local = session.runtime("local")
    plans = []
    for lab in labs:
        stacks = [(stack, Options("cpu")) for stack in lab.stacks]
        if lab.run:
            options = Options("cpu", runtime="local")
            phases = resolve_phases(session, lab, options, local, quick=False, only="")
            stacks += [(phase.phase.stack, phase.options) for phase in phases]
        plans += [make_plan(session.workspace, lab, name, options, local.server_path) for name, options in stacks]
    return plans
