"""From a manifest and a person's options to everything that a stack needs, before anything is made.

A plan is pure: no network, no Docker, no GPU, nothing written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from labbuild import release
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
from labsched.slo import Slo

MODEL_JSON = "vllm_model/1/model.json"  # vLLM's engine arguments, as its vllm_backend takes them

PathMap = Callable[[Path], str]


@dataclass(frozen=True)
class Plan:
    """Everything about one stack that follows from the manifest and the options.

    Attributes:
        fetched: the folder into which TensorRT-LLM's templates are copied out of its image; None where they are given,
            or another engine serves.
        effective: what will be in force where it differs from what was asked (see ``labctl status``).
        notices: what a person should know of the options before anything starts.
        gpu: the one that was chosen, by number or UUID; "" leaves it to the driver.
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
    fetched: Path | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    notices: Sequence[str] = ()
    gpu: str = ""

    @property
    def trtllm(self) -> bool:
        """Whether TensorRT-LLM serves it, with upstream's own models around an engine."""
        return self.stack.tensorrt_llm is not None

    @property
    def image_builds(self) -> list[Build]:
        """Its engines that are made by the builder of the image that serves them."""
        return [made for made in self.artifacts if isinstance(made, Build) and made.of_image]

    def arguments(
        self, repository: str, address: str, ports: Sequence[int], shm_prefix: str, **folders: str
    ) -> list[str]:
        """The arguments of ``tritonserver``; ``folders`` are its own, of backends and caches."""
        timeout = self.stack.server.exit_timeout
        return [*server_arguments(repository, address, ports, shm_prefix, timeout, **folders), *self.server_args]

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
    settings = resolve(lab.settings, options.profile, own, options.set, what=f"stack {name}")
    stack = lay_overlays(stack, options.profile, settings)
    scope: dict[str, Any] = {f"settings.{key}": value for key, value in settings.items()}
    scope |= {"run_dir": server_path(workspace.folder(name).run_dir()), "profile": options.profile, "stack": name}

    trtllm = stack.tensorrt_llm is not None
    serving: dict[str, Any] = expand(stack.tensorrt_llm or {}, scope)
    wanted = release.engine_options(serving)
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
    fetched = workspace.templates_cache / release.RELEASE if trtllm and not options.templates else None
    of_release = options.templates or fetched
    given = [of_release] if of_release else []
    arguments = {key: value for key, value in expand(stack.vllm or {}, scope).items() if value != ""}
    usual_image = release.PLAIN_IMAGE if stack.image_only and options.profile == "gpu" else ""
    request = RenderRequest(
        sources=[*given, *templates] if trtllm else given or templates,
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
        lenient=trtllm,
    )
    if trtllm:
        request = replace(
            request,
            defaults=release.placeholders_for(serving),
            optional=frozenset((*request.optional, *release.OPTIONAL)),
            family=PurePosixPath(release.TEMPLATES).name,
            hint=f"the templates must be those of TensorRT-LLM {release.RELEASE}: --templates DIR, or "
            f"labctl up {name} --profile gpu, which copies them out of its image",
        )
    # Else Triton asks each Python model what its config.pbtxt lacks, in a process of its own, before it loads the model
    # in another one, so that every import is done twice. The models lack nothing.
    server_args = ["--disable-auto-complete-config"]
    server_args += filter(None, (str(expand(argument, scope)) for argument in stack.server.args))
    server_env = {key: str(expand(value, scope)) for key, value in stack.server.env.items()}
    if url := receiver(str(settings["trace"])):
        server_args += trace_arguments(name, url)
        server_env["LABS_TRACE"] = url
    if limits := str(settings["slo"]):
        server_env["LABS_SLO"] = str(Slo.parse(limits))
    return Plan(
        lab=lab,
        name=name,
        stack=stack,
        profile=options.profile,
        settings=settings,
        artifacts=artifacts,
        request=request,
        server_args=server_args,
        server_env=server_env,
        image=release.IMAGE if trtllm else stack.image or usual_image,
        tokenizer_dir=str(expand(stack.tokenizer, host)),
        fetched=fetched,
        effective=release.effective(serving),
        notices=release.notices(serving),
        gpu=options.gpu if options.profile == "gpu" else "",
    )


def _artifact(spec: ArtifactSpec, scope: Mapping[str, Any], wanted: Mapping[str, Any]) -> Artifact:
    """The weights, or the engine, that a manifest asks for. Raises LabError where their source is none."""
    source = str(expand(spec.source, scope))
    if not spec.engine:
        return weights.parse_source(source)
    options = {key: value for key, value in expand(spec.options, scope).items() if value != ""}
    if spec.engine == TensorRtLlm.name:
        options |= wanted
    return engines.request(str(expand(spec.engine, scope)), source, options)
