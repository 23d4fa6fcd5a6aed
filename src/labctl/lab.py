"""What a lab is: settings, stacks, and the program that runs it. A ``lab.py`` imports this module and no other of ours.

``docs/develop/writing-a-lab.md`` is the page for people; :mod:`labctl.catalog` reads the labs of a checkout.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from labctl.texts import Replacement as Replacement
from labkit.errors import LabError

PROFILES = ("cpu", "gpu")
A_SOURCE = "a model source: shipped:<name>, random:<shape>, hub:<id>@<revision> or a folder"
ModelSource = Annotated[str, A_SOURCE]

# -- settings --------------------------------------------------------------------------------------------------------


def setting(
    default: Any,
    help: str,
    *,
    gpu: Any = None,
    ge: float | None = None,
    le: float | None = None,
    when: Mapping[str, Any] | None = None,
    instead: str | None = None,
    of_run: bool = False,
) -> Any:
    """Declare a setting: ``max_batch_size: int = setting(8, "sequences that generate together", ge=1, le=64)``.

    Its type says what ``--set`` may give: ``bool``, ``int``, ``float``, ``str``, ``list[int]`` (with commas; its
    limits stand at ``Annotated[int, Field(ge=1)]``), a
    ``Literal``, a ``ModelSource``; ``int | None`` may be left empty.

    Args:
        gpu: the default on the gpu profile, where it is another one.
        ge, le: the least and the largest good number.
        when: values of other settings with which it means something, ``{"engine": ["openvino", "vllm"]}``; with others
            it is left out, and refused if it is given. ``profile`` stands among them.
        instead: the setting to name in that refusal.
        of_run: it is read by the lab's clients alone, and changes nothing that is served.

    Raises ValueError: a default is not within the limits.
    """
    for value in (default, gpu):
        least, most = (value if ge is None else ge), (value if le is None else le)
        if isinstance(value, int | float) and not least <= value <= most:
            raise ValueError(f"the default {value:g} is not within the limits of its setting")
    conditions = {key: values if isinstance(values, list) else [values] for key, values in (when or {}).items()}
    more = {"gpu": default if gpu is None else gpu, "when": conditions, "instead": instead, "of_run": of_run}
    return Field(default, description=help, ge=ge, le=le, json_schema_extra=more)


def setting_of(settings: type[LabSettings], name: str, default: Any, *, gpu: Any = None, **more: Any) -> Any:
    """Declare a setting of another class again, with another default (and ``when`` or ``help``)."""
    info = settings.model_fields[name]
    declared = _declared(info)
    own = {"help": declared.help, "ge": declared.least, "le": declared.most, "when": declared.when, **more}
    return setting(default, gpu=gpu, instead=declared.instead, of_run=declared.of_run, **own)


class LabSettings(BaseModel):
    """The settings that every lab has; a lab's own class adds to them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    trace: str | None = setting(None, "send every request's trace to otlp://HOST:PORT")
    slo: str | None = setting(None, "the limits of goodput, such as ttft<500ms,tpot<60ms")


@dataclass(frozen=True)
class Setting:
    """What is declared of one setting.

    Attributes:
        kind: what its type is called in words: ``a whole number``.
        choices: every value of a ``Literal`` or ``bool``; none of the other types.
    """

    kind: str
    choices: Sequence[str]
    optional: bool
    listed: bool
    default: Mapping[str, Any]
    help: str
    least: float | None
    most: float | None
    when: Mapping[str, Sequence[Any]]
    instead: str | None
    of_run: bool

    def given(self, value: Any) -> Any:
        """Turn what a person wrote into what the type reads: an empty text is None, commas part a list."""
        text = value.strip() if isinstance(value, str) else value
        if text == "" and self.optional:
            return None
        return [item.strip() for item in text.split(",")] if self.listed and isinstance(text, str) else text

    def describe(self) -> str:
        """The good values, in words."""
        if self.choices:
            return " or ".join(self.choices) if self.kind == "bool" else f"one of: {', '.join(self.choices)}"
        least, most = (None if limit is None else format_plain_number(limit) for limit in (self.least, self.most))
        if least and most:
            return f"{self.kind} from {least} to {most}"
        return f"{self.kind}, at least {least}" if least else f"{self.kind}, at most {most}" if most else self.kind


KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number", str: "a text"}


def declared_settings(model: type[LabSettings]) -> dict[str, Setting]:
    """Every setting of a class, by its name; those of every lab come last."""
    fields = sorted(model.model_fields.items(), key=lambda field: field[0] in LabSettings.model_fields)
    return {key: _declared(info) for key, info in fields}


def _declared(info: Any) -> Setting:
    of_type, more = info.annotation, info.json_schema_extra
    optional = get_origin(of_type) in (Union, types.UnionType)
    if optional:
        of_type = next(item for item in get_args(of_type) if item is not type(None))
    listed = get_origin(of_type) is list
    metadata = list(info.metadata)
    if listed:
        (of_type,) = get_args(of_type)
        if get_origin(of_type) is Annotated:
            of_type, *of_items = get_args(of_type)
            metadata += [limit for item in of_items for limit in item.metadata]
    choices: Sequence[str] = get_args(of_type) if get_origin(of_type) is Literal else ()
    kind = A_SOURCE if A_SOURCE in metadata else KINDS.get(of_type, "one of")
    if of_type is bool:
        kind, choices = "bool", ("true", "false")
    limits = {name: getattr(item, name) for item in metadata for name in ("ge", "le") if hasattr(item, name)}
    return Setting(
        kind=f"{kind}s with commas".replace("a whole", "whole") if listed else kind,
        choices=choices,
        optional=optional,
        listed=listed,
        default={"cpu": info.default, "gpu": more["gpu"]},
        help=str(info.description),
        least=limits.get("ge"),
        most=limits.get("le"),
        when=more["when"],
        instead=more["instead"],
        of_run=more["of_run"],
    )


def format_plain_number(number: float) -> str:
    """1,000,000 and 0.01, never 1e+06."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,}"


# -- stacks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """Weights, or an engine built from them: a folder that is made before the server starts.

    Attributes:
        vocab_size: the number of logits for each position; -1 (any number, for Triton) while weights are not here yet.
    """

    path: str
    vocab_size: int

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Place:
    """Where a stack is served: its profile, and the folder that the server writes to.

    Attributes:
        make: asks for weights (no engine) or an engine of a model source; what is asked for is made before the start.
    """

    profile: str
    run_dir: str
    make: Callable[[str, str | None, Mapping[str, Any]], Made]

    @property
    def instance_kind(self) -> str:
        """The words of a config.pbtxt's ``instance_group`` that place a model."""
        return "KIND_CPU" if self.profile == "cpu" else "KIND_GPU gpus: [ 0 ]"

    def weights(self, source: str) -> Made:
        """The weights of a model source."""
        return self.make(source, None, {})

    def engine(self, engine: str, source: str, **options: Any) -> Made:
        """The engine of that name, built from a model source; an option that is None is left out."""
        return self.make(source, engine, {key: value for key, value in options.items() if value is not None})

    def require(self, profile: str, values: str) -> None:
        """Refuse values of settings that another profile serves. Raises LabError."""
        if self.profile != profile:
            raise LabError(
                f"{values} is not served on the {self.profile} profile",
                f"it is served on: {profile}",
                f"--profile {profile}, or another value (labctl list)",
                code="setting-not-on-profile",
            )


def not_served(values: str, why: str) -> LabError:
    """Make the error of a stack that is not served with these values of its settings."""
    return LabError(
        f"this stack is not served with {values}", why, "another value (labctl list)", code="setting-not-served"
    )


@dataclass(frozen=True)
class Probe:
    """One tiny real inference over HTTP: Triton calls a model READY even if its python stub has died."""

    body: Mapping[str, Any]
    path: Literal["infer", "generate", "generate_stream"] = "infer"


@dataclass(frozen=True)
class BareEngine:
    """The engine that ``labctl bench --against-engine`` runs without Triton, and the model whose steps it compares."""

    model: str
    loop: Literal["gpt2", "inflight"]  # a loop of labserve.alone


@dataclass(frozen=True)
class Bench:
    """The model of a stack that ``labctl bench`` sends requests to; the running server's configuration says how."""

    model: str
    engine: BareEngine | None = None


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a stack is with some values of its settings, on one profile.

    Attributes:
        repository: folders of templates below ``model_repos/``, or ``./FOLDER`` beside the lab; a later one replaces
            files of an earlier one.
        parameters: a value for each placeholder of the templates.
        optional: placeholders for which an empty value is a meaning of its own.
        replacements: literal texts of the templates that are replaced; each must be there.
        files: a person's own files, below the checkout, by their place in the repository.
        links: files below an engine or weights, by their place in the repository.
        models: where they are others than the stack's own.
        tokenizer: the weights whose tokenizer a client may use.
        args, env: of the server.
        exit_timeout: seconds that Triton has to end.
        copies: models that each hold all weights, besides an engine; a GPU must have room for them.
        kv_sequences: of the longest sequences, how many have their keys and values in models that are no engine.
        packages: a layer of packages that ``labctl engines install`` makes.
        image_only: only NVIDIA's image has the backends that serve it; the setting that does without.
        tensorrt_llm: the models are TensorRT-LLM's, filled with these settings.
        vllm: the model is vllm_model, with these arguments of vLLM's engine.
    """

    repository: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    optional: Sequence[str] = ()
    replacements: Sequence[Replacement] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    models: Sequence[str] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    tokenizer: Made | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    exit_timeout: int = 10
    copies: int = 0
    kv_sequences: int = 0
    packages: Literal["vllm"] | None = None
    image_only: str | None = None
    tensorrt_llm: Mapping[str, Any] | None = None
    vllm: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One Triton server with one model repository; what comes up and goes down.

    Attributes:
        serve: from settings and place to what is served. It may be called at any time, and changes nothing.
        settings: other defaults than the lab's.
        also: settings of the lab's run that need other weights or engines, which are made beforehand for a class.
    """

    name: str
    title: str
    models: Sequence[str]
    serve: Callable[[Any, Place], Served]
    settings: Mapping[str, Any] = field(default_factory=dict)
    bench: Bench | None = None
    also: Sequence[Mapping[str, Any]] = ()


# -- a lab and its run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim about a run: one of result.json's metrics against a bound.

    Attributes:
        value: the metric, by its dotted name.
        text: the claim with its numbers: ``{value:.0%}``, and other metrics as ``{m[ratios.x]:.2f}``.
        timed: the value depends on seconds: on a busy machine it may be missed, and is then no verdict.

    Raises ValueError: the text has another field.
    """

    name: str
    value: str
    text: str
    at_least: float | None = None
    at_most: float | None = None
    timed: bool = False

    def __post_init__(self) -> None:
        for name in self._fields:
            if name != "value" and not (name.startswith("m[") and name.endswith("]")):
                raise ValueError(f"{{{name}}} in the text of {self.name} is neither {{value}} nor {{m[METRIC]}}")

    @property
    def metrics(self) -> list[str]:
        """The metrics that the text names beside the value."""
        return [name[2:-1] for name in self._fields if name != "value"]

    @property
    def _fields(self) -> list[str]:
        return [name for _, name, _, _ in Formatter().parse(self.text) if name is not None]


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A number that a person guesses before a run, which the lesson is about: one of result.json's metrics.

    Attributes:
        question: what the number is; it is asked before anything has been measured.
        value: the metric, by its dotted name.
        unit: of the answer; ``%`` of a metric that is a share from 0 to 1.
    """

    question: str
    value: str
    unit: str

    def measured(self, flat: Mapping[str, Any]) -> float | None:
        """The metric in the unit of the answer; None where the run did not measure it."""
        value = flat.get(self.value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value * (100 if self.unit == "%" else 1)

    def in_words(self, value: float | None) -> str:
        """An answer or a measurement, with its unit."""
        if value is None:
            return "not measured"
        number = f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
        unit = self.unit.removesuffix("s") if number == "1" and self.unit != "times" else self.unit
        return f"{number}%" if self.unit == "%" else f"{number} {unit}"


class ServerOfRun(Protocol):
    """A server that a lab's program has opened."""

    def client(self, script: str, phase: str) -> None:
        """Run a script of the lab against it, where clients run; what it writes is named after the phase."""


class LabRun(Protocol):
    """What a lab's program runs with."""

    @property
    def profile(self) -> str: ...

    @property
    def quick(self) -> bool:
        """Whether a person asked for a shorter run."""

    def require(self, profile: str) -> None:
        """Refuse to run on another profile. Raises LabError."""

    def serving(
        self, stack: Stack, *, replicas: int | None = None, balance: str | None = None, **settings: Any
    ) -> AbstractContextManager[ServerOfRun]:
        """Open a server for a block. These settings win over a person's, with a note, and mean nothing elsewhere."""

    def report(self, script: str) -> None:
        """Have the lab's report written from what its clients have measured."""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A numbered lesson. ``lab.py`` calls its own LAB.

    Attributes:
        short: the name by which it is called beside its number.
        serves: its stacks.
        run: the program of ``labctl run``: opens servers, runs clients, and returns what was to be proven.
        guess: what ``labctl run`` asks a person before it.
        share_server: a server of a run serves on for the next block where only files of its models differ.
        folder: of its number and name; filled in by who reads it.
    """

    short: str
    title: str
    summary: str
    settings: type[LabSettings]
    serves: Sequence[Stack]
    run: Callable[[LabRun, Any], Iterable[Verdict]] | None = None
    guess: Guess | None = None
    share_server: bool = False
    folder: str = ""

    @property
    def number(self) -> str:
        return self.folder[:2]

    @cached_property
    def stacks(self) -> Mapping[str, Stack]:
        """Its stacks, by their names."""
        return {stack.name: stack for stack in self.serves}

    @cached_property
    def declared(self) -> Mapping[str, Setting]:
        """Its settings, by their names."""
        return declared_settings(self.settings)
