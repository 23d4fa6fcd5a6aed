"""What each release of TensorRT-LLM is planned and rendered as, kept as text: tests/golden/RELEASE/CASE.txt.

Run as a program, it writes these files anew: `.venv/bin/python tests/golden_releases.py`, then read `git diff`.

A case is a stack with settings on the gpu profile. Its text has the image and its build arguments, the commands that
make weights and engines, the server's arguments, the notices, and what is filled into every config.pbtxt and
model.yaml; or the refusal. tests/golden/RELEASE/templates stands for upstream's templates: the placeholders are
upstream's, the text around them is ours.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from checkout import ROOT

from labbuild.tensorrt_llm import commands
from labctl import repository
from labctl.artifacts.engines import Build
from labctl.artifacts.store import Artifact
from labctl.manifest.catalog import load_catalog
from labctl.manifest.settings import parse_assignments
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import images
from labctl.runtimes.compose import ComposeRuntime
from labctl.workspace import Workspace
from labkit.errors import LabError

GOLDEN = ROOT / "tests" / "golden"
ENGINES = {
    "llama": "llama",
    "llama-static-8-gpus-fp8": "llama gpt_model_type=V1 tp_size=4 pp_size=2 quantization=fp8",
    "static-batching": "static-batching batch_scheduler_policy=max_utilization max_num_sequences=4",
    "inflight-batching": "inflight-batching",
    "inflight-batching-guaranteed-completion": "inflight-batching batch_scheduler_policy=guaranteed_completion "
    "max_tokens_in_paged_kv_cache=4096 kv_cache_free_gpu_mem_fraction=0.2 max_num_sequences=9 max_batch_size=16",
    "inflight-batching-decoupled": "inflight-batching decoupled_mode=true batch_scheduler_policy=max_utilization "
    "max_num_sequences=64 max_batch_size=8 max_num_tokens=4096",
    "codegen": "codegen engine=tensorrt-llm max_batch_size=16",
    "codegen-350m-2-gpus-fp8": "codegen engine=tensorrt-llm model=random:codegen-350m quantization=fp8 tp_size=2",
    "modern": "modern enable_chunked_context=true enable_kv_cache_reuse=true max_num_tokens=256",
}
OLDEST = {
    "codegen-of-the-hub": "codegen engine=tensorrt-llm model=hub:a/b@0123456789012345678901234567890123456789",
    "modern-whole-prompts": "modern",
}
LATER = {"llm-api": "inflight-batching engine=llmapi"}
LLM_API = {
    "llama": "llama engine=llmapi",
    "inflight-batching": "inflight-batching engine=llmapi",
    "inflight-batching-2-gpus": "inflight-batching engine=llmapi tp_size=2 max_tokens_in_paged_kv_cache=4096 "
    "max_num_sequences=8 enable_chunked_context=true enable_kv_cache_reuse=true kv_cache_dtype=fp8 "
    "batch_scheduler_policy=guaranteed_completion",
    "inflight-batching-decoupled": "inflight-batching engine=llmapi decoupled_mode=true max_num_tokens=4096 "
    "batch_scheduler_policy=max_utilization",
    "inflight-batching-decoupled-2-gpus": "inflight-batching engine=llmapi decoupled_mode=true tp_size=2",
    "static-batching": "static-batching engine=llmapi",
    "engine": "inflight-batching engine=tensorrt-llm",
    "limit-of-an-engine": "inflight-batching engine=llmapi max_batch_size=8",
}
CASES: Mapping[str, Mapping[str, str]] = {"0.5.0": ENGINES | OLDEST, "0.17.0": ENGINES | LATER, "1.2.1": LLM_API}


def text(release: str, case: str) -> str:
    """The golden text of a case, as the code has it now."""
    stack, *settings = CASES[release][case].split()
    command = ["labctl", "up", stack, "--profile", "gpu", "--release", release]
    command += [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(ROOT, Path(folder) / "cache")
        options = Options("gpu", parse_assignments(tuple(settings)), release, GOLDEN / release / "templates")
        lab, name = load_catalog(workspace).stack(stack)
        runtime = ComposeRuntime(workspace)
        try:
            plan = make_plan(workspace, lab, name, options, runtime.server_path, Path(folder) / "repository")
            lines = [*_plan(plan, workspace), *_repository(plan)]
        except LabError as error:
            lines = ["refused", *_indented(error.what, error.why, *error.details, error.remedy)]
    found = "\n".join([shlex.join(command), "", *lines, ""])
    return found.replace(folder, "/tmp/labs").replace(str(ROOT), "/checkout")


def _plan(plan: Plan, workspace: Workspace) -> Iterator[str]:
    yield f"image {plan.image}"
    given = images.dockerfile(plan.image) | images.build_arguments(plan.image)
    yield from _indented(*(f"{key}={value}" for key, value in given.items()))
    for artifact in plan.artifacts:
        yield artifact.title
        yield from _indented(*(shlex.join(argv) for argv in _made_by(artifact, workspace)))
    yield f"server, of {plan.ranks} rank{'s' if plan.ranks > 1 else ''}"
    yield from _indented(*plan.server_args, *(f"{key}={value}" for key, value in sorted(plan.server_env.items())))
    yield "notices"
    yield from _indented(*plan.notices)
    yield "effective"
    yield from _indented(
        *(f"{key}: {value['effective']}, not {value['asked']}" for key, value in plan.effective.items())
    )


def _made_by(artifact: Artifact, workspace: Workspace) -> list[list[str]]:
    """The commands that make it: those of an engine run in the image that serves it."""
    if not (isinstance(artifact, Build) and artifact.of_image):
        return [["python", *artifact.argv]]
    shape = artifact.source.name if artifact.source.kind == "random" else ""
    return commands(
        artifact.options, artifact.source.locate(workspace), Path("/scratch"), artifact.locate(workspace), shape
    )


def _repository(plan: Plan) -> Iterator[str]:
    """The rendered configurations, without the lines that they share with their template and those that set ""."""
    repository.render_repository(plan.request)
    for name, template in sorted(repository.origins(plan.request).items()):
        if template.suffix in (".pbtxt", ".yaml"):
            known = template.read_text(encoding="utf-8").splitlines()
            lines = (plan.request.output / name).read_text(encoding="utf-8").splitlines()
            yield f"--- {name}"
            yield from (line for line in lines if line not in known and 'string_value: ""' not in line)


def _indented(*lines: str) -> Iterator[str]:
    return (f"  {line}" for line in lines if line)


def path(release: str, case: str) -> Path:
    """Where the golden text of a case is kept."""
    return GOLDEN / release / f"{case}.txt"


def write() -> None:
    """Write every golden file, and remove those of cases that are no more."""
    for release, cases in CASES.items():
        for old in (GOLDEN / release).glob("*.txt"):
            old.unlink()
        for case in cases:
            path(release, case).write_text(text(release, case), encoding="utf-8")


if __name__ == "__main__":
    write()
