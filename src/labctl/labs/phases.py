"""The phases of a run, each with the settings that it will really have; all known before the first server starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labctl.manifest.schema import Lab, Phase
from labctl.manifest.settings import condition_holds, format_setting, resolve, same_value
from labctl.options import Options
from labctl.plan import implied_settings, make_plan
from labctl.runtimes.base import Runtime
from labctl.stack.session import Session
from labctl.stack.up import refuse_unservable
from labkit.errors import LabError


@dataclass(frozen=True)
class PhaseRun:
    """A phase with its stack's options. ``notes``: what of the asked or the phase's own settings does not hold."""

    phase: Phase
    options: Options
    notes: Sequence[str] = ()


def chosen_phases(lab: Lab, profile: str, quick: bool, only: str) -> list[Phase]:
    """The phases of a run. Raises LabError if there is none."""
    if lab.run is None:
        raise LabError(
            f"lab {lab.folder} has no run section", "", f"labctl up {next(iter(lab.stacks))}", code="lab-not-runnable"
        )
    phases = [p for p in lab.run.phases if (not quick or p.quick) and only in ("", p.stack) and profile in p.profiles]
    if not phases:
        what = f"for stack {only}" if only else f"on the {profile} profile"
        raise LabError(f"lab {lab.short} has no phase {what}", "", f"labctl run {lab.short}", code="phase-unknown")
    return phases


def resolve_phases(
    session: Session, lab: Lab, options: Options, runtime: Runtime, quick: bool, only: str
) -> list[PhaseRun]:
    """The phases of a run, each planned whole.

    A phase's own settings are what the phase is about: they win over a person's, who is told. Those that mean nothing
    with what the person chose are left out; a phase of which nothing remains is left out itself.

    Raises LabError: a phase cannot be served, or no phase heeds what was asked.
    """
    phases = chosen_phases(lab, options.profile, quick, only)
    _require_heeded(lab, options.set, phases)
    runs, left = list[PhaseRun](), dict[str, str]()
    # A setting that means nothing with another one has its usual value all the same, for what depends on it in turn.
    follows = implied_settings(lab, options)
    usual = {key: setting.parse(setting.default_for(options.profile)) for key, setting in lab.settings.items()}
    for phase in phases:
        other = lab.stacks[phase.stack].settings_for(options.profile)
        asked = usual | resolve(lab.settings, options.profile, follows, other, options.set, what=f"stack {phase.stack}")
        # A run compares phases: whether one belongs to it follows from the lab's settings, not from its stack's own.
        common = {**asked, **{key: usual[key] for key in other if key not in options.set}, **follows}
        if not condition_holds(phase.settings_when, common):
            said = ", ".join(f"{key}={format_setting(common.get(key))}" for key in phase.settings_when)
            left[phase.name] = f"it means nothing with {said}"
            continue
        known = {**asked, **phase.set, "profile": options.profile}
        idle = [key for key in phase.set if not condition_holds(lab.settings[key].when, known)]
        own = {key: value for key, value in phase.set.items() if key not in idle}
        notes = []
        for key in idle:
            why = ", ".join(f"{other}={format_setting(asked.get(other))}" for other in lab.settings[key].when)
            notes.append(f"phase {phase.name}: {key} is left out, it has no meaning with {why}")
        if phase.set and not own:
            left[phase.name] = notes[0].partition(": ")[2]
            continue
        notes += [
            f"phase {phase.name} is about {key}={format_setting(value)}, whatever --set says"
            for key, value in own.items()
            if _is_overruled(lab, options.set, key, value)
        ]
        balanced: Any = {"replicas": phase.replicas, "balance": phase.balance} if phase.balanced else {}
        wanted = replace(options, set={**options.set, **own}, **balanced)
        plan = make_plan(session.workspace, lab, phase.stack, wanted, runtime.server_path)
        refuse_unservable(plan, runtime, session.workspace)
        plan.files()  # refused where it cannot be rendered
        runs.append(PhaseRun(phase, wanted, notes))
    for name, why in left.items():
        if name not in {run.phase.name for run in runs}:  # with other values of settings there may be one of that name
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
        if key in lab.settings and all(key in p.set and _is_overruled(lab, asked, key, p.set[key]) for p in phases):
            values = ", ".join(f"{p.name} has {format_setting(p.set[key])}" for p in phases)
            raise LabError(
                f"{key}={value} would change nothing in this run",
                f"every phase sets it itself: {values}",
                f"leave it out, or: labctl bench {phases[0].stack} --set {key}={value}",
                code="setting-unheeded",
            )


def _is_overruled(lab: Lab, asked: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a person asked for another value than the phase has; a bad one is somebody else's to refuse."""
    try:
        return key in asked and not same_value(lab.settings[key].parse(asked[key]), lab.settings[key].parse(value))
    except ValueError:
        return False
