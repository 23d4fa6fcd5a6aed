"""The schema of ``lab.yaml``: its keys, their types, and what each part must have.

``docs/develop/writing-a-lab.md`` is the page for people; :mod:`labctl.manifest.checks` holds a manifest against itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from labctl.manifest.settings import Condition, Setting, condition_holds, expand, format_setting
from labkit.errors import LabError

Profile = Literal["cpu", "gpu"]
PROFILES: tuple[Profile, ...] = ("cpu", "gpu")
# The parts of a stack, and of a layer over it, that may contain any reference.
FILLED = ("parameters", "replacements", "place", "tensorrt_llm", "vllm", "server")
ADDED = {"repository", "parameters", "artifacts", "place", "replacements", "optional", "vllm"}  # by _over
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Folders = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
Act = Literal["kill", "restart", "roll", "scale", "follow", "pause", "run"]
CLOCK_ACTS = {"pause", "run"}  # acts on the schedulers' clock; the others are about replicas


def _fill_names(value: Any) -> Any:
    """``{threads, run_dir: x}``: a key without a value takes the setting of its own name."""
    if not isinstance(value, dict):
        return value
    return {key: f"{{settings.{key}}}" if item is None else item for key, item in value.items()}


Passed = Annotated[dict[str, Any], BeforeValidator(_fill_names)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Conditional(_Strict):
    """A part that exists only with some values of settings, or on one profile."""

    when: Condition = {}

    @property
    def profiles(self) -> list[Profile]:
        return [profile for profile in PROFILES if profile in self.when.get("profile", PROFILES)]

    @property
    def settings_when(self) -> dict[str, list[Any]]:
        """The condition without the profile."""
        return {key: values for key, values in self.when.items() if key != "profile"}


class ArtifactSpec(_Strict):
    """A folder made in the serving environment before rendering: a model's weights, or an engine built from them."""

    kind: Literal["weights", "engine"]
    source: str
    engine: str = ""
    options: Passed = {}

    @model_validator(mode="after")
    def _only_engines_have_options(self) -> ArtifactSpec:
        if (self.kind == "engine") != bool(self.engine) or (self.options and not self.engine):
            raise ValueError("engine and options belong to an artifact of kind engine, which needs the first")
        return self


class Edit(_Strict):
    """A literal text of one template (``file``, below the repository) that is replaced; it must be there.

    ``when``: only with these values of settings.
    """

    file: str
    find: str
    replace: str
    when: Condition = {}


class Probe(_Strict):
    """One tiny real inference over HTTP: Triton calls a model READY even if its python stub has died."""

    path: Literal["infer", "generate", "generate_stream"] = "infer"
    body: dict[str, Any]


class _ServerSpec(_Strict):
    """How the server process is run."""

    args: list[str | dict[str, Any]] = []  # an empty text is left out; {setting, map} chooses an argument
    env: dict[str, str] = {}
    shm_size: str = ""  # the Compose files' own: 256m, 2g on GPUs
    exit_timeout: int = Field(default=10, ge=0)


class BareEngine(_Strict):
    """The engine that ``labctl bench --against-engine`` runs without Triton, and the model whose steps it compares."""

    model: str
    loop: Literal["gpt2", "inflight"]  # a loop of labserve.alone


class Bench(_Strict):
    """The model of this stack that ``labctl bench`` sends requests to; the running server's configuration says how."""

    model: str
    engine: BareEngine | None = None


class Content(_Strict):
    """The parts of a stack, and of a layer over it."""

    repository: Folders = []
    models: list[Name] = []
    image: str = ""
    artifacts: dict[str, ArtifactSpec] = {}
    parameters: Passed = {}
    optional: list[str] = []
    replacements: list[Edit] = []
    place: dict[str, str] = {}
    probes: dict[str, Probe] = {}
    bench: Bench | None = None
    server: _ServerSpec = _ServerSpec()
    copies: int = 0  # models that each hold all weights, besides an engine; a GPU must have room for them
    tensorrt_llm: Passed | None = None  # the models are TensorRT-LLM's, filled with these settings
    vllm: Passed | None = None  # the model is vllm_model: vLLM's engine arguments, for its model.json
    packages: Literal["", "vllm"] = ""  # a layer of packages that `labctl engines install` makes (runtimes/layers.py)
    image_only: str = ""  # only NVIDIA's image has the backends that serve it; the setting that does without


class _Variant(_Conditional, Content):
    """The changes to a stack under some values of settings, such as ``{engine: transformers}``.

    With ``profile`` beside settings, these values are served on that profile alone, and refused on the other unless a
    variant with the same values is for that one.
    """

    when: Annotated[Condition, Field(min_length=1)]
    refused: str = ""  # why the stack is not served with these values


class StackSpec(Content):
    """One Triton server with one model repository."""

    title: str
    repository: Folders
    models: list[Name] = Field(min_length=1)
    settings: dict[str, Any] = {}  # other defaults than the lab's; a value may be by profile, as a default
    tokenizer: str = ""
    variants: dict[Name, _Variant] = {}

    @property
    def layers(self) -> dict[str, Content]:
        """The stack itself and all that may be laid over it, by key."""
        return {"": self, **{f".variants.{name}": variant for name, variant in self.variants.items()}}

    def settings_for(self, profile: str) -> dict[str, Any]:
        """The stack's own defaults on a profile."""
        return {key: value[profile] if isinstance(value, dict) else value for key, value in self.settings.items()}


class Phase(_Conditional):
    """One server and one client run within ``labctl run``."""

    name: Name
    stack: Name
    client: str
    set: dict[str, Any] = {}
    quick: bool = True  # also run with --quick
    replicas: int | None = Field(default=None, ge=1, le=8)
    balance: Literal["", "l4", "l7", "hash", "client"] = ""
    acts: list[Act] = []  # acts that its client may request from labctl while it runs

    @property
    def balanced(self) -> bool:
        return bool(self.balance) or (self.replicas or 1) > 1


class _RunSpec(_Strict):
    phases: list[Phase] = Field(min_length=1)
    report: str
    share_server: bool = False  # a phase keeps the previous one's server; models whose files differ are reloaded


class Verdict(_Conditional):
    """A claim about a run: one of result.json's metrics against a bound."""

    name: Name
    value: str
    text: str
    at_least: float | None = None
    at_most: float | None = None
    timed: bool = False  # the value depends on seconds: on a busy machine it may be missed, and is then no verdict

    @model_validator(mode="after")
    def _require_bound(self) -> Verdict:
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
    stacks: dict[Name, StackSpec] = Field(min_length=1)
    run: _RunSpec | None = None
    verdicts: list[Verdict] = []

    @property
    def folder(self) -> str:
        return f"{self.number}-{self.name}"


def lay_overlays(stack: StackSpec, profile: str, settings: Mapping[str, Any]) -> StackSpec:
    """The stack as it is on ``profile`` with ``settings``. Raises LabError: a value does not go with the profile."""
    here = [variant.settings_when for variant in stack.variants.values() if profile in variant.profiles]
    for variant in stack.variants.values():
        if not condition_holds(variant.settings_when, settings):
            continue
        values = " ".join(f"{key}={format_setting(settings[key])}" for key in variant.settings_when)
        served = profile in variant.profiles
        if variant.refused and served:
            raise LabError(
                f"this stack is not served with {values}",
                variant.refused,
                "another value (labctl list)",
                code="setting-not-served",
            )
        if served:
            stack = _over(stack, variant)
        elif values and not variant.refused and variant.settings_when not in here:
            raise LabError(
                f"{values} is not served on the {profile} profile",
                f"it is served on: {', '.join(variant.profiles)}",
                f"--profile {variant.profiles[0]}, or another value (labctl list)",
                code="setting-not-on-profile",
            )
    return stack


def probes(stack: StackSpec, scope: Mapping[str, Any]) -> dict[str, Probe]:
    """The stack's tiny inferences, with the values of ``scope`` in their bodies."""
    return {
        model: probe.model_copy(update={"body": expand(probe.body, scope)}) for model, probe in stack.probes.items()
    }


def _over(stack: StackSpec, variant: _Variant) -> StackSpec:
    """Lists and mappings are added to, all else is replaced; TensorRT-LLM's templates come instead of its own."""
    under = dict(stack)
    if variant.tensorrt_llm is not None:
        under |= {"repository": [], "parameters": {}, "optional": [], "replacements": [], "tensorrt_llm": None}
    over = {key: getattr(variant, key) for key in variant.model_fields_set - {"when", "refused"}}
    for key in ADDED & over.keys():
        if isinstance(over[key], list):
            over[key] = [*under[key], *over[key]]
        else:
            over[key] = {**(under[key] or {}), **over[key]}
    return stack.model_copy(update={**under, **over})
