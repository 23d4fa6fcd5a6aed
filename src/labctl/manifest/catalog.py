"""Finds and validates the labs: ``labs/NN-name/lab.yaml`` is the only source of truth for what a stack is.

A manifest that is broken is refused with file, key and reason, all problems of all files at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from labctl.errors import LabError
from labctl.manifest.references import REFERENCE, strings
from labctl.manifest.settings import Setting
from labctl.workspace import Workspace

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PROFILES = ("cpu", "gpu")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Artifact(_Strict):
    """A folder made in the serving environment before rendering: a model's weights, or an engine built from them."""

    kind: Literal["weights", "engine"]
    source: str
    engine: str = ""
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _only_engines_have_options(self) -> Artifact:
        if (self.kind == "engine") != bool(self.engine) or (self.options and not self.engine):
            raise ValueError("engine and options belong to an artifact of kind engine, which needs the first")
        return self


class Replacement(_Strict):
    """A literal replacement in one template; one that matches nothing is an error."""

    file: str
    find: str
    replace: str
    when: dict[str, Any] = {}


class Probe(_Strict):
    """One tiny real inference over HTTP: a dead python stub still says READY, an answer does not lie."""

    path: Literal["infer", "generate", "generate_stream"] = "infer"
    body: dict[str, Any]


class Server(_Strict):
    """How the server process is run."""

    args: list[str | dict[str, Any]] = []  # a text that is empty is no argument; {setting, map} chooses one
    env: dict[str, str] = {}
    shm_size: str = ""  # the Compose files' own: 256m, 2g on GPUs
    exit_timeout: int = Field(default=10, ge=0)


class Bench(_Strict):
    """Which model of this stack ``labctl bench`` asks for text; how, the running server tells."""

    model: str


class _Content(_Strict):
    """What a stack has, and what may be laid over it."""

    image: str = ""
    artifacts: dict[str, Artifact] = {}
    parameters: dict[str, Any] = {}
    optional: list[str] = []
    replacements: list[Replacement] = []
    place: dict[str, str] = {}
    tensorrt_llm: dict[str, Any] | None = None  # the models are a TensorRT-LLM release's, filled with these settings
    image_only: str = ""  # only NVIDIA's image has the backends that serve it; the setting that does without


class Overlay(_Content):
    """What a profile changes of a stack; each key replaces or extends the stack's own.

    With ``tensorrt_llm`` nothing of the stack's own repository, parameters and replacements is taken over.
    """

    repository: list[str] = []
    models: list[Name] | None = None
    server: Server | None = None
    copies: int | None = None


class Variant(Overlay):
    """An overlay for some values of the settings, such as ``{engine: transformers}``."""

    when: dict[str, Any] = Field(min_length=1)
    profiles: list[Literal["cpu", "gpu"]] = ["cpu", "gpu"]


class Stack(_Content):
    """One Triton server with one model repository."""

    title: str
    repository: list[str]
    models: list[Name] = Field(min_length=1)
    settings: dict[str, Any] = {}
    tokenizer: str = ""
    server: Server = Server()
    probes: dict[str, Probe] = {}
    bench: Bench | None = None
    profiles: dict[Literal["cpu", "gpu"], Overlay] = {}
    variants: list[Variant] = []
    copies: int = 0  # models that each hold all weights, besides an engine; a GPU must have room for them

    @model_validator(mode="before")
    @classmethod
    def _one_folder(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("repository"), str):
            data = {**data, "repository": [data["repository"]]}
        return data

    @model_validator(mode="after")
    def _probes_name_models(self) -> Stack:
        if unknown := set(self.probes) - set(self.models):
            raise ValueError(f"probes for models that the stack does not have: {', '.join(sorted(unknown))}")
        return self


class Phase(_Strict):
    """One server and one client run within ``labctl run``."""

    name: Name
    stack: Name
    client: str
    set: dict[str, Any] = {}
    quick: bool = True  # also run with --quick
    profiles: list[Literal["cpu", "gpu"]] = ["cpu", "gpu"]


class Run(_Strict):
    phases: list[Phase] = Field(min_length=1)
    report: str


class Verdict(_Strict):
    """What a run proves: a number of result.json's metrics against a bound."""

    name: Name
    value: str
    text: str
    at_least: float | None = None
    at_most: float | None = None
    profiles: list[Literal["cpu", "gpu"]] = ["cpu", "gpu"]  # where the run measures the value

    @model_validator(mode="after")
    def _bounded(self) -> Verdict:
        if self.at_least is None and self.at_most is None:
            raise ValueError("a verdict needs at_least or at_most")
        return self


class Lab(_Strict):
    """A numbered lesson."""

    schema_version: Literal[1] = Field(alias="schema")
    number: Annotated[str, Field(pattern=r"^\d\d$")]
    name: Name
    short: Name
    title: str
    summary: str
    settings: dict[str, Setting] = {}
    stacks: dict[Name, Stack] = Field(min_length=1)
    run: Run | None = None
    verdicts: list[Verdict] = []

    @property
    def folder(self) -> str:
        return f"{self.number}-{self.name}"

    @model_validator(mode="after")
    def _references(self) -> Lab:
        problems = []
        for stack_name, stack in self.stacks.items():
            unknown = set(stack.settings) - set(self.settings)
            problems += [f"stacks.{stack_name}.settings.{key}: not a setting of this lab" for key in sorted(unknown)]
            for text in strings(stack.model_dump(exclude={"probes", "bench", "server"})):
                for name in REFERENCE.findall(text):
                    kind, _, key = name.partition(".")
                    if kind == "settings" and key not in self.settings:
                        problems.append(f"stacks.{stack_name}: '{{settings.{key}}}' is not a setting of this lab")
            for variant in stack.variants:
                unknown = set(variant.when) - set(self.settings)
                problems += [f"stacks.{stack_name}.variants.when.{key}: not a setting" for key in sorted(unknown)]
            for name, value in stack.parameters.items():
                if isinstance(value, dict) and value.get("setting") not in self.settings:
                    problems.append(f"stacks.{stack_name}.parameters.{name}: unknown setting {value.get('setting')!r}")
        for phase in self.run.phases if self.run else ():
            if phase.stack not in self.stacks:
                problems.append(f"run.phases.{phase.name}.stack: no stack {phase.stack!r} in this lab")
            unknown = set(phase.set) - set(self.settings)
            problems += [f"run.phases.{phase.name}.set.{key}: not a setting of this lab" for key in sorted(unknown)]
        if problems:
            raise ValueError("; ".join(problems))
        return self


@dataclass(frozen=True)
class Catalog:
    """All labs, and the one namespace of their short names and stack names."""

    labs: tuple[Lab, ...]

    def lab(self, word: str) -> Lab:
        """The lab of a number (``02`` or ``2``), a folder name, a short name or the name of one of its stacks."""
        for lab in self.labs:
            if word in (lab.number, lab.number.lstrip("0"), lab.folder, lab.name, lab.short) or word in lab.stacks:
                return lab
        raise LabError(f"there is no lab or stack '{word}'", f"known: {self._names()}", "labctl list")

    def stack(self, word: str) -> tuple[Lab, str]:
        """The lab and the name of the stack of that name, or the only stack of the lab that ``word`` names."""
        lab = self.lab(word)
        if word in lab.stacks:
            return lab, word
        if len(lab.stacks) == 1:
            return lab, next(iter(lab.stacks))
        raise LabError(
            f"lab {lab.number} ({lab.short}) has {len(lab.stacks)} stacks",
            f"name one of them: {', '.join(lab.stacks)}",
            f"labctl up {next(iter(lab.stacks))}",
        )

    def _names(self) -> str:
        return ", ".join(word for lab in self.labs for word in dict.fromkeys((lab.short, *lab.stacks)))


def load(workspace: Workspace) -> Catalog:
    """Read every manifest of the checkout.

    Raises:
        LabError: some manifest is broken, or two of them use one name; all problems are listed.
    """
    labs: list[Lab] = []
    problems: list[str] = []
    owners: dict[str, str] = {}
    for path in sorted(workspace.labs.glob("*/lab.yaml")):
        where = path.relative_to(workspace.root).as_posix()
        try:
            lab = parse(path)
        except ValidationError as error:
            problems += [f"{where}: {_where(item)}{item['msg']}" for item in error.errors()]
            continue
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
            problems.append(f"{where}: {' '.join(str(error).split())}")
            continue
        if path.parent.name != lab.folder:
            problems.append(f"{where}: number and name say {lab.folder}, the folder is {path.parent.name}")
        for word in {lab.short, *lab.stacks, lab.number}:
            if word in owners and owners[word] != lab.folder:
                problems.append(f"{where}: the name '{word}' is already taken by {owners[word]}")
            owners[word] = lab.folder
        labs.append(lab)
    if problems:
        raise LabError("a lab manifest is broken", "", "correct the keys named above", details=problems)
    return Catalog(tuple(labs))


def parse(path: Path) -> Lab:
    """One manifest. Raises pydantic's ValidationError, YAMLError or OSError."""
    return Lab.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})


def _where(item: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    return f"{key}: " if key else ""
