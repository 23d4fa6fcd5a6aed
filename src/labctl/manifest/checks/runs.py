"""Phases and verdicts: names, files, settings that can be served, and texts that can be filled."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from labctl.manifest.checks.stacks import leaves
from labctl.manifest.overlays import overlaid
from labctl.manifest.schema import PROFILES, Lab
from labctl.manifest.settings import resolve
from labkit.errors import LabError

RESERVED = "result"  # a run writes result.json beside the files that are named after its phases


def problems(lab: Lab) -> Iterator[str]:
    if lab.run is None:
        if lab.verdicts:
            yield "verdicts: what they judge is measured by a run, and there is no run section"
        return
    for phase in lab.run.phases:
        where = f"run.phases.{phase.name}"
        if phase.name == RESERVED or phase.name.startswith("context-"):
            yield f"{where}: the name is taken by a file that every run writes"
        if phase.stack not in lab.stacks:
            yield f"{where}.stack: no stack '{phase.stack}' in this lab"
            continue
        if phase.balanced and "gpu" in phase.profiles:
            yield f"{where}.replicas: on gpu each would need a GPU; say profiles: [cpu]"
        if phase.acts and not phase.balanced:
            yield f"{where}.acts: they are about replicas; say replicas or balance"
        for profile in phase.profiles:
            try:
                settings = resolve(lab.settings, profile, lab.stacks[phase.stack].settings, phase.set)
                overlaid(lab.stacks[phase.stack], profile, settings)
            except LabError as error:
                yield f"{where}: on {profile}: {'; '.join(error.details) or error.what}"
    for profile in PROFILES:
        names = Counter(phase.name for phase in lab.run.phases if profile in phase.profiles)
        yield from (f"run.phases.{name}: {n} phases of this name on {profile}" for name, n in names.items() if n > 1)
        verdicts = Counter(verdict.name for verdict in lab.verdicts if profile in verdict.profiles)
        yield from (f"verdicts.{name}: {n} of this name on {profile}" for name, n in verdicts.items() if n > 1)
    for verdict in lab.verdicts:
        yield from _text(f"verdicts.{verdict.name}.text", verdict.text)


def missing(lab: Lab, folder: Path) -> Iterator[str]:
    if lab.run is None:
        return
    clients = ((f"run.phases.{phase.name}.client", phase.client) for phase in lab.run.phases)
    for where, name in (("run.report", lab.run.report), *clients):
        if leaves(name) or not (folder / name).is_file():
            yield f"{where}: there is no file {name} in this lab's folder"


def _text(where: str, text: str) -> Iterator[str]:
    """A verdict's text names its own value and other metrics: ``{value:.2f}``, ``{m[ratios.x]}``."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        yield f"{where}: {error}"
        return
    for field in fields:
        if field != "value" and not (field.startswith("m[") and field.endswith("]")):
            yield f"{where}: '{{{field}}}' is neither {{value}} nor {{m[METRIC]}}"
