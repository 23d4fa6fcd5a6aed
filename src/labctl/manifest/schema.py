"""What ``lab.yaml`` may say: its keys, their types, and what each part must have.

``docs/develop/writing-a-lab.md`` is the page for people; :mod:`labctl.manifest.checks` holds a manifest against itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from labctl.manifest.settings import Condition, Setting

Profile = Literal["cpu", "gpu"]
PROFILES: tuple[Profile, ...] = ("cpu", "gpu")
# The parts of a stack, and of what is laid over it, in which every reference may stand.
FILLED = ("parameters", "replacements", "place", "tensorrt_llm", "llmapi", "vllm", "server")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


def _passed(value: Any) -> Any:
    """``{threads, run_dir: x}``: a key without a value takes the setting of its own name."""
    if not isinstance(value, dict):
        return value
    return {key: f"{{settings.{key}}}" if item is None else item for key, item in value.items()}


Passed = Annotated[dict[str, Any], BeforeValidator(_passed)]
Folders = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Artifact(_Strict):
    """A folder made in the serving environment before rendering: a model's weights, or an engine built from them."""

    kind: Literal["weights", "engine"]
    source: str
    engine: str = ""
    options: Passed = {}

    @model_validator(mode="after")
    def _only_engines_have_options(self) -> Artifact:
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
    """One tiny real inference over HTTP: a dead python stub still says READY, an answer does not lie."""

    path: Literal["infer", "generate", "generate_stream"] = "infer"
    body: dict[str, Any]


class Server(_Strict):
    """How the server process is run."""

    args: list[str | dict[str, Any]] = []  # a text that is empty is no argument; {setting, map} chooses one
    env: dict[str, str] = {}
    shm_size: str = ""  # the Compose files' own: 256m, 2g on GPUs
    exit_timeout: int = Field(default=10, ge=0)
    # Triton asks each Python model what its config.pbtxt lacks, in a process of its own, before it loads the model in
    # another: every import is paid twice. Ours lack nothing.
    auto_complete: bool = False


class BareEngine(_Strict):
    """What ``labctl bench --against-engine`` runs without Triton: the model whose steps it compares with."""

    model: str
    loop: Literal["gpt2", "inflight"]  # of labserve.alone


class Bench(_Strict):
    """Which model of this stack ``labctl bench`` asks for text; how, the running server tells."""

    model: str
    engine: BareEngine | None = None


class _Content(_Strict):
    """What a stack has, and what may be laid over it."""

    image: str = ""
    artifacts: dict[str, Artifact] = {}
    parameters: Passed = {}
    optional: list[str] = []
    replacements: list[Edit] = []
    place: dict[str, str] = {}
    tensorrt_llm: Passed | None = None  # the models are a TensorRT-LLM release's, filled with these settings
    llmapi: dict[str, Any] | None = None  # the model is a release's LLM API: keys of its model.yaml
    vllm: Passed | None = None  # the model is vllm_model: vLLM's engine arguments, for its model.json
    packages: Literal["", "vllm"] = ""  # a layer of packages that `labctl engines install` makes (runtimes/layers.py)
    image_only: str = ""  # only NVIDIA's image has the backends that serve it; the setting that does without


class Overlay(_Content):
    """What a profile changes of a stack; each key replaces or extends the stack's own.

    With ``tensorrt_llm`` or ``llmapi`` nothing of the stack's own repository, parameters, replacements is taken over.
    """

    repository: Folders = []
    models: list[Name] | None = None
    probes: dict[str, Probe] | None = None
    bench: Bench | None = None
    server: Server | None = None
    copies: int | None = None


class Variant(Overlay):
    """An overlay for some values of the settings, such as ``{engine: transformers}``."""

    when: Annotated[Condition, Field(min_length=1)]
    profiles: list[Profile] = list(PROFILES)
    refused: str = ""  # why the stack is not served with these values


class Stack(_Content):
    """One Triton server with one model repository."""

    title: str
    repository: Folders
    models: list[Name] = Field(min_length=1)
    settings: dict[str, Any] = {}
    tokenizer: str = ""
    server: Server = Server()
    probes: dict[str, Probe] = {}
    bench: Bench | None = None
    profiles: dict[Profile, Overlay] = {}
    variants: dict[Name, Variant] = {}
    copies: int = 0  # models that each hold all weights, besides an engine; a GPU must have room for them


Act = Literal["kill", "restart", "roll", "scale", "follow"]


class Phase(_Strict):
    """One server and one client run within ``labctl run``."""

    name: Name
    stack: Name
    client: str
    set: dict[str, Any] = {}
    quick: bool = True  # also run with --quick
    when: Condition = {}  # only with these values of settings
    profiles: list[Profile] = list(PROFILES)
    replicas: int | None = Field(default=None, ge=1, le=8)
    balance: Literal["", "l4", "l7", "hash", "client"] = ""
    acts: list[Act] = []  # what its client may ask of labctl while it runs

    @property
    def balanced(self) -> bool:
        return bool(self.balance) or (self.replicas or 1) > 1


class Run(_Strict):
    phases: list[Phase] = Field(min_length=1)
    report: str
    share_server: bool = False  # a phase goes on with the server before it; models whose files differ are loaded anew


class Verdict(_Strict):
    """What a run proves: a number of result.json's metrics against a bound."""

    name: Name
    value: str
    text: str
    at_least: float | None = None
    at_most: float | None = None
    timed: bool = False  # the value depends on seconds: on a busy machine it may be missed, and is then no verdict
    profiles: list[Profile] = list(PROFILES)  # where the run measures the value

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
