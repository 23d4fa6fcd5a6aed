"""Checks that a manifest is consistent: every fault that can be found by reading it is refused, by key and reason.

The checks cover references, conditions, the values that stacks and phases set, names, and files. Faults that only a
rendering or a server can show (a template's placeholders, a model's tensors) are reported there.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from labctl.manifest.schema import CLOCK_ACTS, FILLED, PROFILES, Lab, Phase, StackSpec, Verdict, lay_overlays
from labctl.manifest.settings import CHOICE, REFERENCE, Setting, format_setting, resolve
from labctl.workspace import Workspace
from labkit.errors import LabError

PROFILE = "profile"  # stands among the settings where something depends on it
PROFILE_SETTING = Setting(type="choice", choices=[*PROFILES], default="cpu", help="")
RESERVED = "result"  # a run writes result.json beside the files that are named after its phases
EARLY = {"profile", "stack"}  # known before anything is made
LATE = EARLY | {"run_dir", "vocab_size"}
SPACED = ("{ settings.", "{ artifacts.", "{ run_dir ", "{ profile ", "{ stack ", "{ vocab_size ")


def problems(lab: Lab, folder: str) -> list[str]:
    """Everything that is wrong with a manifest of the right shape, one line each: key, then reason.

    ``folder``: the name of the lab's own.
    """
    found = [] if folder == lab.folder else [f"number and name say {lab.folder}, the folder is {folder}"]
    bad_values = list(value_problems(lab))
    found += bad_values
    for name, stack in lab.stacks.items():
        found += stack_problems(lab, f"stacks.{name}", stack)
        if not bad_values:  # it resolves settings, and so needs good conditions
            found += every_case(lab, f"stacks.{name}", stack)
    if not bad_values:
        found += run_problems(lab)
    return list(dict.fromkeys(found))


def missing_files(lab: Lab, folder: Path, workspace: Workspace) -> Iterator[str]:
    """The files and folders that a manifest names and that are not there, in the same form."""
    layers = [(f"stacks.{name}{key}", layer) for name, spec in lab.stacks.items() for key, layer in spec.layers.items()]
    for where, layer in layers:
        for name in layer.repository:
            if not leaves_checkout(name) and not workspace.templates(lab.folder, name).is_dir():
                place = f"labs/{lab.folder}" if name.startswith("./") else "model_repos"
                yield f"{where}.repository: there is no folder {place}/{name.removeprefix('./')}"
    if lab.run:
        clients = ((f"run.phases.{phase.name}.client", phase.client) for phase in lab.run.phases)
        for where, name in (("run.report", lab.run.report), *clients):
            if leaves_checkout(name) or not (folder / name).is_file():
                yield f"{where}: there is no file {name} in this lab's folder"


def run_problems(lab: Lab) -> Iterator[str]:
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
            yield f"{where}.replicas: on gpu each would need a GPU; say when: {{profile: cpu}}"
        if set(phase.acts) - CLOCK_ACTS and not phase.balanced:
            yield f"{where}.acts: they are about replicas; say replicas or balance"
        for profile in phase.profiles:
            try:
                settings = resolve(lab.settings, profile, lab.stacks[phase.stack].settings_for(profile), phase.set)
                lay_overlays(lab.stacks[phase.stack], profile, settings)
            except LabError as error:
                yield f"{where}: on {profile}: {'; '.join(error.details) or error.what}"
    named: dict[str, Sequence[Phase | Verdict]] = {"run.phases": lab.run.phases, "verdicts": lab.verdicts}
    for where, parts in named.items():
        for one, other in itertools.combinations(parts, 2):
            overlap = all(set(values) & set(other.when.get(key, values)) for key, values in one.when.items())
            if one.name == other.name and overlap:
                yield f"{where}.{one.name}: two of this name at a time"
    for verdict in lab.verdicts:
        yield from _text(f"verdicts.{verdict.name}.text", verdict.text)


def _text(where: str, text: str) -> Iterator[str]:
    """A verdict's text names its own value and other metrics: ``{value:.2f}``, ``{m[ratios.x]}``."""
    try:
        for _, field, _, _ in string.Formatter().parse(text):
            if field not in (None, "value") and not (str(field).startswith("m[") and str(field).endswith("]")):
                yield f"{where}: '{{{field}}}' is neither {{value}} nor {{m[METRIC]}}"
    except ValueError as error:
        yield f"{where}: {error}"


def stack_problems(lab: Lab, where: str, stack: StackSpec) -> Iterator[str]:
    made = {f"artifacts.{name}" for layer in stack.layers.values() for name in layer.artifacts}
    early = {f"settings.{key}" for key in lab.settings} | EARLY
    for key, layer in stack.layers.items():
        path = f"{where}{key}"
        for name, artifact in layer.artifacts.items():
            yield from _references(f"{path}.artifacts.{name}", artifact.model_dump(), early)
        for part, value in layer.model_dump(include=set(FILLED)).items():
            yield from _references(f"{path}.{part}", value, early | LATE | made)
        yield from _places(f"{path}.place", layer.place)
        for folder in layer.repository:
            if leaves_checkout(folder):
                yield f"{path}.repository: '{folder}' leads out of the checkout"
    yield from _references(f"{where}.tokenizer", stack.tokenizer, early | LATE | made)
    for name, probe in stack.probes.items():
        yield from _references(f"{where}.probes.{name}", probe.body, early)
    models = {f"probes.{name}": name for name in stack.probes}
    if stack.bench:
        models["bench.model"] = stack.bench.model
    for key, model in models.items():
        if model not in stack.models:
            yield f"{where}.{key}: the stack has no model '{model}'; it has: {', '.join(stack.models)}"


def _references(where: str, value: Any, known: set[str]) -> Iterator[str]:
    for path, text in _walk(where, value):
        if not isinstance(text, str):
            continue
        for name in REFERENCE.findall(text):
            if name not in known:
                unknown = name.startswith("settings.") and name != "settings."
                what = "'{{{}}}' is not a setting of this lab" if unknown else "there is no '{{{}}}' here"
                yield f"{path}: {what.format(name)}"
        for start in SPACED:
            if start in text:
                yield f"{path}: '{start}...' is not a reference: leave out the space"


def _walk(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value and every one below it, each with its path; a key has its mapping's."""
    yield where, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield where, str(key)
            yield from _walk(f"{where}.{key}", item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(f"{where}.{number}", item)


def _places(where: str, place: Mapping[str, str]) -> Iterator[str]:
    for link, target in place.items():
        if leaves_checkout(link):
            yield f"{where}.{link}: leads out of the repository"
        if not target.startswith("{artifacts.") or ".." in PurePosixPath(target).parts:
            yield f"{where}.{link}: '{target}' is not below an artifact, such as {{artifacts.NAME}}/model.onnx"


def leaves_checkout(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts


def every_case(lab: Lab, where: str, stack: StackSpec) -> Iterator[str]:
    """The stack as each profile and each value of a condition leave it: what it refers to must exist there."""
    conditions = (*(v.when for v in stack.variants.values()), *(setting.when for setting in lab.settings.values()))
    keys = {key for condition in conditions for key in condition} - {PROFILE}
    cases = [{}, *({key: value} for key in sorted(keys) for value in lab.settings[key].values())]
    sometimes = {f"settings.{key}" for key in lab.settings} | {"vocab_size"}
    sometimes |= {f"artifacts.{name}" for layer in stack.layers.values() for name in layer.artifacts}
    for profile in PROFILES:
        for case in cases:
            try:
                settings = resolve(lab.settings, profile, stack.settings_for(profile), case)
                whole = lay_overlays(stack, profile, settings)
            except LabError:
                continue  # a combination that people are refused as well
            there = {f"settings.{key}" for key in settings} | {f"artifacts.{name}" for name in whole.artifacts}
            if any(artifact.kind == "weights" for artifact in whole.artifacts.values()):
                there.add("vocab_size")
            filled = whole.model_dump(include={*FILLED, "artifacts", "tokenizer", "probes"})
            texts = (text for _, text in _walk("", filled) if isinstance(text, str))
            named = {name for text in texts for name in REFERENCE.findall(text)}
            condition = " ".join(f"{key}={value}" for key, value in case.items()) or "the default settings"
            yield from (
                f"{where}: there is no '{{{name}}}' on {profile} with {condition}"
                for name in sorted(named & sometimes - there)
            )


def value_problems(lab: Lab) -> Iterator[str]:
    declared = {**lab.settings, PROFILE: PROFILE_SETTING}
    conditions = [(f"settings.{key}", setting.when) for key, setting in lab.settings.items()]
    for key, setting in lab.settings.items():
        if key in setting.when:
            yield f"settings.{key}.when.{key}: a setting cannot depend on itself"
        if setting.instead and setting.instead not in lab.settings:
            yield f"settings.{key}.instead: '{setting.instead}' is not a setting of this lab"
    for name, stack in lab.stacks.items():
        for key, value in stack.settings.items():
            if isinstance(value, dict) and value.keys() != set(PROFILES):
                yield f"stacks.{name}.settings.{key}: a value by profile is {{cpu: ..., gpu: ...}}"
                break
        else:
            for profile in PROFILES:
                yield from _values(lab, f"stacks.{name}.settings", stack.settings_for(profile))
        conditions += [(f"stacks.{name}.variants.{key}", variant.when) for key, variant in stack.variants.items()]
        for layer, content in stack.layers.items():
            where = f"stacks.{name}{layer}"
            conditions += [(f"{where}.replacements", edit.when) for edit in content.replacements]
            for path, value in _walk(where, content.model_dump(include={*FILLED, "artifacts", "probes"})):
                is_choice = isinstance(value, dict) and "map" in value
                if is_choice and (value.keys() >= CHOICE or "setting" not in value):
                    yield from _map(declared, path, value)
    for phase in lab.run.phases if lab.run else ():
        yield from _values(lab, f"run.phases.{phase.name}.set", phase.set)
        conditions.append((f"run.phases.{phase.name}", phase.when))
    for verdict in lab.verdicts:
        conditions.append((f"verdicts.{verdict.name}", verdict.when))
        if verdict.settings_when:
            yield f"verdicts.{verdict.name}.when: a verdict depends on the profile alone"
    for where, condition in conditions:
        for key, values in condition.items():
            if key not in declared:
                yield f"{where}.when.{key}: not a setting of this lab"
                continue
            for value in values:
                yield from _written(f"{where}.when.{key}", declared[key], value)
    if PROFILE in lab.settings:
        yield f"settings.{PROFILE}: the name is taken: --profile"


def _values(lab: Lab, where: str, values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if key not in lab.settings:
            yield f"{where}.{key}: not a setting of this lab"
            continue
        try:
            lab.settings[key].parse(value)
        except ValueError as error:
            yield f"{where}.{key}: {error}"


def _written(where: str, setting: Setting, value: Any) -> Iterator[str]:
    """A value to compare with must be a good one, written as settings' values are: ``true``, not ``yes``."""
    try:
        text = format_setting(setting.parse(value))
    except ValueError as error:
        yield f"{where}: {error}"
        return
    if text != format_setting(value):
        yield f"{where}: '{format_setting(value)}' is written {text}"


def _map(declared: Mapping[str, Setting], where: str, choice: Mapping[str, Any]) -> Iterator[str]:
    key, options = str(choice.get("setting")), choice["map"]
    if choice.keys() != CHOICE or not isinstance(options, dict):
        yield f"{where}: a choice is {{setting: NAME, map: {{VALUE: ...}}}}"
        return
    if key not in declared:
        yield f"{where}.setting: '{key}' is not a setting of this lab"
        return
    for value in options:
        yield from _written(f"{where}.map", declared[key], value)
    covered = {format_setting(value) for value in options}
    if missing := [value for value in declared[key].values() if value not in covered]:
        yield f"{where}.map: nothing for {key}={' or '.join(missing)}"
