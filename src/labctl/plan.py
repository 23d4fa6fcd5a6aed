"""From a lab and a person's options to everything that a stack needs, before anything is made.

A plan is pure: no network, no Docker, no GPU, nothing written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from labbuild import release
from labctl import repository
from labctl.artifacts import engines, weights
from labctl.artifacts.engines import Build
from labctl.artifacts.store import Artifact
from labctl.artifacts.weights import Source
from labctl.catalog import broken_lab, refuse_mistakes
from labctl.lab import Lab, Made, Place, Served
from labctl.options import Options
from labctl.repository import RenderRequest
from labctl.settings import in_force, resolve
from labctl.triton.arguments import receiver, server_arguments, trace_arguments
from labctl.workspace import Workspace
from labsched.replay.slo import Slo

MODEL_JSON = "vllm_model/1/model.json"  # vLLM's engine arguments, as its vllm_backend takes them


@dataclass(frozen=True)
class Plan:
    """Everything about one stack that follows from the lab and the options.

    Attributes:
        fetched: the folder into which TensorRT-LLM's templates are copied out of its image; None where they are given,
            or another engine serves.
        effective: what will be in force where it differs from what was asked (see ``labctl status``).
        notices: what a person should know of the options before anything starts.
        gpu: the GPUs that its servers may take, by number or UUID, separated by commas; None: the driver chooses.
    """

    lab: Lab
    name: str
    served: Served
    profile: str
    settings: Mapping[str, Any]
    artifacts: Sequence[Artifact]
    request: RenderRequest
    server_args: Sequence[str]
    server_env: Mapping[str, str]
    image: str | None
    tokenizer_dir: str | None
    fetched: Path | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    notices: Sequence[str] = ()
    gpu: str | None = None

    @property
    def trtllm(self) -> bool:
        """Whether TensorRT-LLM serves it, with upstream's own models around an engine."""
        return self.served.tensorrt_llm is not None

    @property
    def ranks(self) -> int:
        """The GPUs of each server."""
        return int(self.settings.get("tp_size") or 1)

    @property
    def image_builds(self) -> list[Build]:
        """Its engines that are made by the builder of the image that serves them."""
        return [made for made in self.artifacts if isinstance(made, Build) and made.of_image]

    def arguments(
        self, repository: str, address: str, ports: Sequence[int], shm_prefix: str, **folders: str
    ) -> list[str]:
        """The arguments of ``tritonserver``; ``folders`` are its own, of backends and caches."""
        timeout = self.served.exit_timeout
        return [*server_arguments(repository, address, ports, shm_prefix, timeout, **folders), *self.server_args]

    @property
    def stack_settings(self) -> dict[str, Any]:
        """The settings that change what is served (not those that only the lab's clients read)."""
        return {k: v for k, v in self.settings.items() if not self.lab.declared[k].of_run}

    def ready(self, workspace: Workspace) -> bool:
        """Whether all its weights and engines are there. Raises LabError for one that is damaged."""
        return all(artifact.ready(workspace) for artifact in self.artifacts)

    def require_templates(self, workspace: Workspace) -> Plan:
        """Return the plan. Raises LabError: the lab's program names a folder of templates that is not there."""
        for written in self.served.repository:
            folder = workspace.templates(self.lab.folder, written)
            if not (PurePosixPath(written).is_absolute() or folder.is_dir()):  # an exercise's is filled later
                error = FileNotFoundError(f"there is no folder {folder}")
                raise broken_lab(workspace, self.lab.folder, error, f'"{written}"')
        return self

    def files(self) -> list[str]:
        """The rendered repository, file by file; where its templates are yet to be fetched, model by model.

        Raises LabError: it cannot be rendered.
        """
        waiting = self.fetched is not None and not self.fetched.is_dir()
        names = [f"{model}/" for model in self.served.models] if waiting else repository.listing(self.request)
        return [f"{self.request.output}/{name}" for name in names]


def make_plan(workspace: Workspace, lab: Lab, name: str, options: Options, output: Path | None = None) -> Plan:
    """Resolve one stack.

    Args:
        output: where the repository is rendered; default: the stack's own folder.

    Raises LabError: unknown or bad settings, an unknown model source, a mistake in the lab's program.
    """
    stack = lab.stacks[name]
    chosen = resolve(lab, options.profile, stack.settings, options.set, what=f"stack {name}")
    artifacts: list[Artifact] = []

    def make(source: str, engine: str | None, wanted: Mapping[str, Any]) -> Made:
        artifact = engines.request(engine, source, wanted) if engine else weights.parse_source(source)
        artifacts.append(artifact)
        vocabulary = artifact.vocab_size(workspace) if isinstance(artifact, Source) else -1
        return Made(str(artifact.locate(workspace)), vocabulary)

    with refuse_mistakes(workspace, lab.folder):
        served = stack.serve(chosen, Place(options.profile, str(workspace.folder(name).run_dir()), make))
    if not isinstance(served, Served):
        nothing = TypeError(f"serve of stack {name} returned {served!r} in place of Served(...)")
        raise broken_lab(workspace, lab.folder, nothing, f'"{name}"')
    served = replace(served, models=served.models or stack.models)
    templates = [workspace.templates(lab.folder, folder) for folder in served.repository]
    serving = served.tensorrt_llm
    fetched = workspace.templates_cache / release.RELEASE if serving is not None and not options.templates else None
    of_release = options.templates or fetched
    given = [of_release] if of_release else []
    arguments = {key: value for key, value in (served.vllm or {}).items() if value is not None}
    usual_image = release.PLAIN_IMAGE if served.image_only and options.profile == "gpu" else None
    request = RenderRequest(
        sources=[*given, *templates] if serving is not None else given or templates,
        models=served.models,
        parameters=served.parameters,
        output=output or workspace.folder(name).repository,
        optional=frozenset(served.optional),
        replacements=served.replacements,
        files={place: workspace.root / path for place, path in served.files.items()},
        place=served.links,
        documents={MODEL_JSON: arguments} if arguments else {},
        spare=not given,
        lenient=serving is not None,
    )
    if serving is not None:
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
    server_args += served.args
    server_env = dict(served.env)
    if url := receiver(chosen.trace):
        server_args += trace_arguments(name, url)
        server_env["LABS_TRACE"] = url
    if chosen.slo:
        server_env["LABS_SLO"] = str(Slo.parse(chosen.slo))
    return Plan(
        lab=lab,
        name=name,
        served=served,
        profile=options.profile,
        settings=in_force(lab, options.profile, chosen),
        artifacts=list({artifact.key: artifact for artifact in artifacts}.values()),
        request=request,
        server_args=server_args,
        server_env=server_env,
        image=release.IMAGE if serving is not None else usual_image,
        tokenizer_dir=served.tokenizer.path if served.tokenizer else None,
        fetched=fetched,
        effective=release.effective(serving or {}),
        notices=release.notices(serving or {}),
        gpu=options.gpu if options.profile == "gpu" else None,
    )
