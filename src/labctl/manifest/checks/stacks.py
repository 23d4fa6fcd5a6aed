"""What a stack refers to: settings, artifacts, folders and models that must be there, in every case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from labctl.manifest.checks.values import layers
from labctl.manifest.overlays import overlaid
from labctl.manifest.references import REFERENCE, strings
from labctl.manifest.schema import FILLED, PROFILES, Lab, Stack
from labctl.manifest.settings import resolve
from labctl.workspace import Workspace
from labkit.errors import LabError

EARLY = {"profile", "stack", "release"}  # known before anything is made
LATE = EARLY | {"run_dir", "vocab_size"}
SPACED = ("{ settings.", "{ artifacts.", "{ run_dir ", "{ profile ", "{ stack ", "{ release ", "{ vocab_size ")


def problems(lab: Lab, where: str, stack: Stack) -> Iterator[str]:
    made = {f"artifacts.{name}" for _, layer in layers(where, stack) for name in layer.artifacts}
    early = {f"settings.{key}" for key in lab.settings} | EARLY
    for path, layer in layers(where, stack):
        for name, artifact in layer.artifacts.items():
            yield from _references(f"{path}.artifacts.{name}", artifact.model_dump(), early)
        for key, value in layer.model_dump(include=set(FILLED)).items():
            yield from _references(f"{path}.{key}", value, early | LATE | made)
        yield from _places(f"{path}.place", layer.place)
        for folder in layer.repository:
            if leaves(folder):
                yield f"{path}.repository: '{folder}' leads out of the checkout"
    yield from _references(f"{where}.tokenizer", stack.tokenizer, early | LATE | made)
    for name, probe in stack.probes.items():
        yield from _references(f"{where}.probes.{name}", probe.body, early - {"release"})
    asked = {f"probes.{name}": name for name in stack.probes}
    if stack.bench:
        asked["bench.model"] = stack.bench.model
    yield from (
        f"{where}.{key}: the stack has no model '{model}'; it has: {', '.join(stack.models)}"
        for key, model in asked.items()
        if model not in stack.models
    )


def missing(lab: Lab, where: str, stack: Stack, workspace: Workspace) -> Iterator[str]:
    for path, layer in layers(where, stack):
        for folder in layer.repository:
            if not leaves(folder) and not workspace.templates(lab.folder, folder).is_dir():
                place = f"labs/{lab.folder}" if folder.startswith("./") else "model_repos"
                yield f"{path}.repository: there is no folder {place}/{folder.removeprefix('./')}"


def _references(where: str, value: Any, known: set[str]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _references(f"{where}.{key}", item, known)
            if REFERENCE.search(str(key)):
                yield from _references(where, str(key), known)
        return
    if isinstance(value, list | tuple):
        for item in value:
            yield from _references(where, item, known)
        return
    if not isinstance(value, str):
        return
    for name in REFERENCE.findall(value):
        if name in known:
            continue
        kind, _, key = name.partition(".")
        if kind == "settings" and key:
            yield f"{where}: '{{{name}}}' is not a setting of this lab"
        else:
            yield f"{where}: there is no '{{{name}}}' here"
    for start in SPACED:
        if start in value:
            yield f"{where}: '{start}...' is no reference: leave out the space"


def _places(where: str, place: Mapping[str, str]) -> Iterator[str]:
    for link, target in place.items():
        if leaves(link):
            yield f"{where}.{link}: leads out of the repository"
        if not target.startswith("{artifacts.") or ".." in PurePosixPath(target).parts:
            yield f"{where}.{link}: '{target}' is not below an artifact, such as {{artifacts.NAME}}/model.onnx"


def leaves(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts


def every_case(lab: Lab, where: str, stack: Stack) -> Iterator[str]:
    """The stack as each profile and each value of a condition leave it: what it refers to must exist there."""
    keys = {key for variant in stack.variants.values() for key in variant.when}
    keys |= {key for setting in lab.settings.values() for key in setting.only}
    cases = [{}, *({key: value} for key in sorted(keys) for value in lab.settings[key].values())]
    sometimes = {f"settings.{key}" for key in lab.settings} | {"vocab_size"}
    sometimes |= {f"artifacts.{name}" for _, layer in layers(where, stack) for name in layer.artifacts}
    for profile in PROFILES:
        for case in cases:
            try:
                settings = resolve(lab.settings, profile, stack.settings, case)
                whole = overlaid(stack, profile, settings)
            except LabError:
                continue  # a combination that people are refused as well
            there = {f"settings.{key}" for key in settings} | {f"artifacts.{name}" for name in whole.artifacts}
            if any(artifact.kind == "weights" for artifact in whole.artifacts.values()):
                there.add("vocab_size")
            filled = whole.model_dump(include={*FILLED, "artifacts", "tokenizer", "probes"})
            named = {name for text in strings(filled) for name in REFERENCE.findall(text)}
            condition = " ".join(f"{key}={value}" for key, value in case.items()) or "the default settings"
            yield from (
                f"{where}: there is no '{{{name}}}' on {profile} with {condition}"
                for name in sorted(named & sometimes - there)
            )
