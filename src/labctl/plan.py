"""From a manifest and a person's options to everything that a stack needs, before anything is made.

A plan is pure: no network, no Docker, no GPU, nothing written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import Path, PurePosixPath
from typing import Any

from labbuild import releases
from labbuild.releases import PLAIN_IMAGE, Release
from labbuild.tensorrt_llm import TensorRtLlm
from labctl import repository
from labctl.artifacts import engines, weights
from labctl.artifacts.engines import Build
from labctl.artifacts.store import Artifact
from labctl.artifacts.weights import Source
from labctl.manifest.schema import ArtifactSpec, Lab, StackSpec, lay_overlays, probes
from labctl.manifest.settings import condition_holds, expand, resolve
from labctl.options import Options
from labctl.repository import RenderRequest
from labctl.texts import Replacement
from labctl.triton.arguments import receiver, server_arguments, trace_arguments
from labctl.workspace import Workspace
from labkit.errors import LabError
from labsched.slo import Slo

MIG = "MIG-"  # how the UUID of a slice of a GPU begins
MODEL_JSON = "vllm_model/1/model.json"  # vLLM's engine arguments, as its vllm_backend takes them

PathMap = Callable[[Path], str]


@dataclass(frozen=True)
class Plan:
    """Everything about one stack that follows from the manifest and the options.

    Attributes:
        release: the TensorRT-LLM release that serves it; None where none does.
        fetched: the folder into which the release's templates are copied out of its image; None where they are given.
        effective: what will be in force where it differs from what was asked (see ``labctl status``).
        notices: what a person should know of the options before anything starts.
        gpus: those that were chosen, by number or UUID; () leaves it to the driver.
    """

    lab: Lab
    name: str
    stack: StackSpec
    profile: str
    settings: Mapping[str, Any]
    artifacts: Sequence[Artifact]
    request: RenderRequest
    server_args: Sequence[str]
    server_env: Mapping[str, str]
    image: str
    tokenizer_dir: str
    release: Release | None = None
    fetched: Path | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    notices: Sequence[str] = ()
    gpus: Sequence[str] = ()

    @property
    def devices(self) -> Sequence[str]:
        """The chosen GPUs that serve it, as many as there are ranks; () is the first ones of the machine."""
        return self.gpus[: self.ranks]

    @property
    def image_builds(self) -> list[Build]:
        """Its engines that are made by the builder of the image that serves them."""
        return [made for made in self.artifacts if isinstance(made, Build) and made.of_image]

    @property
    def ranks(self) -> int:
        """The GPUs that the engine is spread over."""
        spread: list[Mapping[str, Any]] = [build.options for build in self.image_builds]
        if self.stack.llmapi is not None:
            spread = [self.settings]
        return max((int(options["tp_size"]) * int(options["pp_size"]) for options in spread), default=1)

    @property
    def launcher(self) -> str:
        """The script in the release's image that starts a process for each rank; "" without a release."""
        return self.release.launcher if self.release else ""

    def arguments(
        self, repository: str, address: str, ports: Sequence[int], shm_prefix: str, **folders: str
    ) -> list[str]:
        """The arguments of ``tritonserver``; ``folders`` are its own, of backends and caches."""
        timeout = self.stack.server.exit_timeout
        return [*server_arguments(repository, address, ports, shm_prefix, timeout, **folders), *self.server_args]

    @property
    def templates(self) -> str:
        """Where the release's image has the templates of this stack's models."""
        assert self.release is not None
        return _templates(self.release, self.stack)

    @property
    def stack_settings(self) -> dict[str, Any]:
        """The settings that change what is served (not those that only the lab's clients read)."""
        return {k: v for k, v in self.settings.items() if self.lab.settings[k].scope == "stack"}

    def ready(self, workspace: Workspace) -> bool:
        """Whether all its weights and engines are there. Raises LabError for one that is damaged."""
        return all(artifact.ready(workspace) for artifact in self.artifacts)

    def files(self) -> list[str]:
        """The rendered repository, file by file; where its templates are yet to be fetched, model by model.

        Raises LabError: it cannot be rendered.
        """
        waiting = self.fetched is not None and not self.fetched.is_dir()
        names = [f"{model}/" for model in self.stack.models] if waiting else repository.listing(self.request)
        return [f"{self.request.output}/{name}" for name in names]


def make_plan(
    workspace: Workspace, lab: Lab, name: str, options: Options, server_path: PathMap, output: Path | None = None
) -> Plan:
    """Resolve one stack.

    Args:
        server_path: how the server will see a path of this machine.
        output: where the repository is rendered; default: the stack's own folder.

    Raises LabError: unknown or bad settings, an unknown model source, a reference to nothing.
    """
    stack = lab.stacks[name]
    own = stack.settings_for(options.profile)
    settings = resolve(
        lab.settings, options.profile, implied_settings(lab, options), own, options.set, what=f"stack {name}"
    )
    stack = lay_overlays(stack, options.profile, settings)
    release = _release(stack, options)
    usual: list[str] = []
    built = [artifact.options for artifact in stack.artifacts.values() if artifact.engine == TensorRtLlm.name]
    if release and built:
        model = str(built[0].get("model", TensorRtLlm.options["model"].default))
        settings, usual = release.usual_for(model, settings, options.set)
    scope: dict[str, Any] = {f"settings.{key}": value for key, value in settings.items()}
    scope |= {"run_dir": server_path(workspace.folder(name).run_dir()), "profile": options.profile, "stack": name}
    scope["release"] = release.name if release else ""

    serving: dict[str, Any] = expand(stack.tensorrt_llm or {}, scope)
    wanted = release.engine_options(serving) if release else {}
    artifacts: list[Artifact] = []
    host = dict(scope)  # the same with the paths of this machine
    for key, spec in stack.artifacts.items():
        artifact = _artifact(spec, scope, wanted)
        artifacts.append(artifact)
        if isinstance(artifact, Source):
            scope["vocab_size"] = artifact.vocab_size(workspace)
        path = artifact.locate(workspace)
        host[f"artifacts.{key}"] = str(path)
        scope[f"artifacts.{key}"] = server_path(path)

    stack = stack.model_copy(update={"probes": probes(stack, scope)})
    templates = [workspace.templates(lab.folder, folder) for folder in stack.repository]
    kind = "-llmapi" if stack.llmapi is not None else ""
    fetched = workspace.templates_cache / f"{release.name}{kind}" if release and not options.templates else None
    of_release = options.templates or fetched
    given = [of_release] if of_release else []
    arguments = {key: value for key, value in expand(stack.vllm or {}, scope).items() if value != ""}
    usual_image = PLAIN_IMAGE if stack.image_only and options.profile == "gpu" else ""
    request = RenderRequest(
        sources=[*given, *templates] if release else given or templates,
        models=stack.models,
        parameters=expand(stack.parameters, scope),
        output=output or workspace.folder(name).repository,
        optional=frozenset(stack.optional),
        replacements=[
            Replacement(r.file, str(expand(r.find, scope)), str(expand(r.replace, scope)))
            for r in stack.replacements
            if condition_holds(r.when, {**settings, "profile": options.profile})
        ],
        place={str(expand(k, scope)): str(expand(v, scope)) for k, v in stack.place.items()},
        documents={MODEL_JSON: arguments} if arguments else {},
        spare=not given,
        lenient=bool(fetched),
        auto_complete=stack.server.auto_complete,
    )
    if release:
        documents = dict(request.documents)
        if llmapi := expand(stack.llmapi or {}, scope):
            documents[releases.MODEL_YAML] = release.model_yaml(llmapi)
        request = replace(
            request,
            defaults=release.defaults_for(serving),
            optional=frozenset((*request.optional, *release.optional)),
            replacements=[*starmap(Replacement, release.replacements_for(serving)), *request.replacements],
            family=PurePosixPath(_templates(release, stack)).name,
            documents=documents,
            hint=f"the templates must be those of TensorRT-LLM {release.name}: --templates DIR, or "
            f"labctl up {name} --profile gpu, which copies them out of its image",
        )
    served = release if serving else None
    server_args = [] if stack.server.auto_complete else ["--disable-auto-complete-config"]
    server_args += filter(None, (str(expand(argument, scope)) for argument in stack.server.args))
    server_env = {key: str(expand(value, scope)) for key, value in stack.server.env.items()}
    if url := receiver(str(settings["trace"])):
        server_args += trace_arguments(name, url)
        server_env["LABS_TRACE"] = url
    if limits := str(settings["slo"]):
        server_env["LABS_SLO"] = str(Slo.parse(limits))
    plan = Plan(
        lab=lab,
        name=name,
        stack=stack,
        profile=options.profile,
        settings=settings,
        artifacts=artifacts,
        request=request,
        server_args=server_args,
        server_env=server_env,
        image=release.image if release else stack.image or usual_image,
        tokenizer_dir=str(expand(stack.tokenizer, host)),
        release=release,
        fetched=fetched,
        effective=served.effective(serving) if served else {},
        notices=[*usual, *(served.check_combination(serving) if served else ())],
        gpus=options.gpus if options.profile == "gpu" else (),
    )
    _require_choice(plan.gpus, plan.ranks)
    return plan


def implied_settings(lab: Lab, options: Options) -> dict[str, Any]:
    """Settings that follow from options: a release of TensorRT-LLM is served by TensorRT-LLM, where vLLM would be."""
    engine = lab.settings.get("engine")
    if not options.release or options.profile != "gpu" or engine is None or "engine" in options.set:
        return {}
    return {"engine": TensorRtLlm.name} if engine.default_for("gpu") == "vllm" else {}


def _require_choice(gpus: Sequence[str], ranks: int) -> None:
    """Refuse a choice of GPUs that does not hold an engine of that many ranks.

    ``gpus``: numbers or UUIDs; () is no choice. Raises LabError: too few, or slices for more than one rank.
    """
    if gpus and len(gpus) < ranks:
        raise LabError(
            f"the engine is spread over {ranks} GPUs, but --gpus names {len(gpus)}",
            f"--gpus {','.join(gpus)} (or CUDA_VISIBLE_DEVICES)",
            f"name {ranks}, or a smaller tp_size",
            code="gpus-named-wrong",
        )
    if ranks > 1 and any(name.startswith(MIG) for name in gpus[:ranks]):
        raise LabError(
            "an engine cannot be spread over MIG slices",
            "its ranks reach each other through NCCL, which joins whole GPUs only",
            "--set tp_size=1, or whole GPUs",
            code="mig-spread",
        )


def _release(stack: StackSpec, options: Options) -> Release | None:
    if stack.tensorrt_llm is not None or stack.llmapi is not None:
        usual = releases.LLM_API_RELEASE if stack.llmapi is not None else releases.DEFAULT_RELEASE
        release = releases.release(options.release or usual)
        if stack.tensorrt_llm is not None and not release.steps:
            raise LabError(
                f"TensorRT-LLM {release.name} has no engines here",
                "what it serves is the LLM API",
                f"--set engine=llmapi, or --release {releases.DEFAULT_RELEASE}",
                code="release-without-engines",
            )
        return release
    if options.release:
        raise LabError(
            f"--release {options.release} does not apply here",
            f"TensorRT-LLM serves no model of this stack on the {options.profile} profile with these settings",
            "leave it out, or use --profile gpu --set engine=tensorrt-llm",
            code="release-not-applicable",
        )
    return None


def _templates(release: Release, stack: StackSpec) -> str:
    """Where the release's image has the templates of this stack's models; the folder is their family."""
    if stack.llmapi is not None:
        return release.llmapi.templates if release.llmapi else ""
    return release.templates


def _artifact(spec: ArtifactSpec, scope: Mapping[str, Any], wanted: Mapping[str, Any]) -> Artifact:
    """The weights, or the engine, that a manifest asks for. Raises LabError where their source is none."""
    source = str(expand(spec.source, scope))
    if not spec.engine:
        return weights.parse_source(source)
    options = {key: value for key, value in expand(spec.options, scope).items() if value != ""}
    if spec.engine == TensorRtLlm.name:
        options |= wanted
    return engines.request(str(expand(spec.engine, scope)), source, options)
