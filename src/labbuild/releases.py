"""TensorRT-LLM by release: the table of ``releases.yaml``, and what a stack's settings mean on each of them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

DEFAULT_RELEASE = "0.17.0"
LLM_API_RELEASE = "1.2.1"  # the default release of stacks that the LLM API serves
PLAIN_IMAGE = "nvcr.io/nvidia/tritonserver:25.02-py3"  # the image of GPU stacks without a TensorRT-LLM release
POLICY_ALIASES = {"guaranteed_completion": "guaranteed_no_evict"}  # the published workshop's word for it
FALLBACK_POLICY = "guaranteed_no_evict"
STATIC = "V1"
LITERAL_BATCHING_TYPE = "inflight_fused_batching"  # the type in a template without batching_parameter

# A stack's setting whose placeholder in the templates has another name; the others are called alike.
_NAMES = {"max_batch_size": "triton_max_batch_size"}
# What the engine itself is built with or bounded by, whether or not the templates have a place for it.
_ENGINES_OWN = ("max_batch_size", "max_num_sequences")
MODEL_YAML = "tensorrt_llm/1/model.yaml"  # of the LLM API's model
_TYPES: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}
Value = bool | int | float | str


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # most commands ask no release anything


class _App(_Data):
    """The commits from which an image that lacks upstream's templates, scripts and examples gets them."""

    backend: str
    tensorrt_llm: str


class _Usual(_Data):
    """Settings that a release takes for an engine of one model unless they are given, and why."""

    settings: Mapping[str, int]
    why: str


class _LlmApi(_Data):
    """The LLM API's model of a release: ``keys`` are those of model.yaml that may be given, with their types."""

    templates: str
    keys: Mapping[str, Literal["str", "int", "float", "bool"]]


class Release(_Data):
    """One release of the TensorRT-LLM backend; releases.yaml explains the keys. Paths are those in its image."""

    name: str
    aliases: tuple[str, ...] = ()
    image: str
    tensorrt_llm: str
    cuda: str
    driver: str
    app: _App | None = None
    install: str = ""
    newest: str
    without: tuple[str, ...] = ()
    steps: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    llmapi: _LlmApi | None = None
    templates: str = "/app/all_models/inflight_batcher_llm"
    launcher: str = "/app/scripts/launch_triton_server.py"
    deprecated: tuple[str, ...] = ()
    batching_parameter: str = ""
    no_evict_decoupled: bool = False
    integers: Literal["UINT32", "INT32"] = "INT32"
    words_and_scores: bool = True
    usual: Mapping[str, _Usual] = {}
    defaults: Mapping[str, Value] = {}
    optional: tuple[str, ...] = ()

    def defaults_for(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A value for every placeholder of this release's templates but the two folders, which the stack gives.

        The stack's settings are taken over where the templates have a place for them; "" is the backend's own default.
        With the ``trtllm_`` ones a model of the labs' own speaks to this release's ``tensorrt_llm``.
        """
        values: dict[str, Any] = {**dict.fromkeys(self.optional, ""), **self.defaults}
        values |= {"trtllm_integers": self.integers, "trtllm_words_and_scores": self.words_and_scores}
        for setting, value in settings.items():
            if (name := _NAMES.get(setting, setting)) in values:
                values[name] = value
        if self.batching_parameter and "gpt_model_type" in settings:
            values[self.batching_parameter] = settings["gpt_model_type"]
        if "batch_scheduler_policy" in values:
            values["batch_scheduler_policy"] = _policy(values["batch_scheduler_policy"])
        return values

    def usual_for(
        self, model: str, settings: Mapping[str, Any], given: Collection[str]
    ) -> tuple[dict[str, Any], list[str]]:
        """The settings that this release takes for an engine of ``model``, and notices; the ``given`` ones stay."""
        usual = self.usual.get(model)
        if usual is None:
            return dict(settings), []
        changed, kept = {}, []
        for key, value in usual.settings.items():
            if key in given:
                if settings[key] > value:
                    kept.append(f"{key}={settings[key]}, not {value}, on TensorRT-LLM {self.name}: {usual.why}")
            elif key in settings and settings[key] != value:
                changed[key] = value
        notices = []
        if changed:
            assignments = ", ".join(f"{key}={value}" for key, value in changed.items())
            notices.append(f"{assignments} on TensorRT-LLM {self.name}: {usual.why}")
        return {**settings, **changed}, [*notices, *kept]

    def engine_options(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """How the engine must be built: static batching computes all prompts of a batch in one step."""
        return {"max_num_tokens": 0} if settings.get("gpt_model_type") == STATIC else {}

    def replacements_for(self, settings: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        """File, literal text and new text where the templates have no placeholder (the workshop's ``sed``)."""
        batching = settings.get("gpt_model_type", LITERAL_BATCHING_TYPE)
        if self.batching_parameter or batching == LITERAL_BATCHING_TYPE:
            return []
        return [("tensorrt_llm/config.pbtxt", LITERAL_BATCHING_TYPE, batching)]

    def model_yaml(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, by dotted key, as model.yaml nests them; one that is empty is left to the LLM API.

        Raises LabError, with all that is wrong, for keys that the release does not take and values of the wrong type.
        """
        if self.llmapi is None:
            raise LabError(
                f"TensorRT-LLM {self.name} is not served by its LLM API here",
                f"the labs serve it in the image of {LLM_API_RELEASE}",
                f"--release {LLM_API_RELEASE}, or leave it out",
                code="release-without-llmapi",
            )
        problems, nested = [], dict[str, Any]()
        given = {key: value for key, value in values.items() if value != ""}
        for key, value in given.items():
            kind = self.llmapi.keys.get(key)
            if kind is None:
                problems.append(f"{key}={value}: the LLM API of {self.name} takes no such key")
            elif not isinstance(value, _TYPES[kind]) or (kind != "bool" and isinstance(value, bool)):
                problems.append(f"{key}={value}: it must be of type {kind}")
            else:
                *above, last = key.split(".")
                into = nested
                for name in above:
                    into = into.setdefault(name, {})
                into[last] = value
        ranks = 1
        if not problems:
            ranks = given.get("tensor_parallel_size", 1) * given.get("pipeline_parallel_size", 1)
        if ranks > 1 and given.get("triton_config.decoupled"):
            problems.append(
                "triton_config.decoupled=True: the launcher for several GPUs switches off what would set it"
            )
        if problems:
            raise LabError(
                "model.yaml cannot be written",
                "",
                "correct what is named above",
                details=problems,
                code="model-yaml-invalid",
            )
        return nested

    def check_combination(self, settings: Mapping[str, Any]) -> list[str]:
        """Notices of settings that are not served as written. Raises LabError: a setting is not served at all."""
        notices = []
        for key, value in settings.items():
            if value not in (False, "") and key not in _ENGINES_OWN and not self.knows(key):
                first = next((other.name for other in all_releases().values() if other.knows(key)), "")
                without = f"--set {key}={'false' if value is True else ''}"
                raise LabError(
                    f"TensorRT-LLM {self.name} has no {key}",
                    "its templates have no place for it, so it would be dropped silently",
                    f"--release {first}, or {without}" if first else without,
                    code="release-lacks-setting",
                )
        if (batching := settings.get("gpt_model_type", "")) in self.deprecated:
            notices.append(f"TensorRT-LLM {self.name} still serves {batching}, but calls it deprecated")
        for name, item in self.effective(settings).items():
            notices.append(f"{name} in effect: {item['effective']}, not {item['asked']} ({item['reason']})")
        return notices

    def knows(self, setting: str) -> bool:
        """True if this release's templates have a place for a stack's setting."""
        return setting == "gpt_model_type" or _NAMES.get(setting, setting) in (*self.defaults, *self.optional)

    def effective(self, settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """Settings that will be in force with another value than asked for: by setting, the value and the reason."""
        differing = {}
        asked = str(settings.get("batch_scheduler_policy", FALLBACK_POLICY))
        in_force, reason = self._policy_in_force(asked, settings)
        if reason:
            differing["batch_scheduler_policy"] = {"asked": asked, "effective": in_force, "reason": reason}
        sequences, engine = settings.get("max_num_sequences"), settings.get("max_batch_size")
        if sequences is None or engine is None:
            return differing
        reason = ""
        if not self.knows("max_num_sequences") and sequences != engine:
            reason = f"TensorRT-LLM {self.name} has no such parameter: the engine's own max_batch_size holds"
        elif sequences > engine:
            reason = "the engine's own max_batch_size is the bound"
        if reason:
            differing["max_num_sequences"] = {"asked": str(sequences), "effective": str(engine), "reason": reason}
        return differing

    def _policy_in_force(self, asked: str, settings: Mapping[str, Any]) -> tuple[str, str]:
        """The scheduler policy that is really in force, and why where it is not the one asked for ("" otherwise)."""
        accepted = _policy(asked)
        if accepted == FALLBACK_POLICY:
            reason = "" if accepted == asked else "the one word that the backend accepts for it"
            return accepted, reason
        if settings.get("gpt_model_type") == STATIC:
            return FALLBACK_POLICY, f"{STATIC} runs a batch to its end, so it takes only what fits to its end"
        if self.no_evict_decoupled and settings.get("decoupled_mode"):
            return FALLBACK_POLICY, f"TensorRT-LLM {self.name} serves decoupled models with no other policy"
        return accepted, ""


def _policy(name: str) -> str:
    """The word that the backend accepts for a scheduler policy."""
    return POLICY_ALIASES.get(name, name)


@functools.cache
def all_releases() -> Mapping[str, Release]:
    """Every release by its name, oldest first."""
    text = resources.files(__package__).joinpath("releases.yaml").read_text(encoding="utf-8")
    return {name: Release(name=name, **data) for name, data in parse_yaml(text)["releases"].items()}


def release(name: str = "") -> Release:
    """A release by its name or one of its aliases; none means the default one. Raises LabError for an unknown one."""
    name = (name or DEFAULT_RELEASE).removeprefix("v")
    for candidate in all_releases().values():
        if name == candidate.name or name in candidate.aliases:
            return candidate
    known = ", ".join("=".join((r.name, *r.aliases)) for r in all_releases().values())
    raise LabError(
        f"unknown TensorRT-LLM release '{name}'",
        f"known are: {known}",
        f"--release {DEFAULT_RELEASE}",
        code="release-unknown",
    )
