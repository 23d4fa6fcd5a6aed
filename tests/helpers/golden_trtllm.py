"""What TensorRT-LLM is planned and rendered as, kept as text: tests/golden/tensorrt-llm/CASE.txt.

Run as a program, it writes these files again: `.venv/bin/python tests/helpers/golden_trtllm.py`, then read `git diff`.

A case is a stack with settings on the gpu profile. Its text has the image and its build arguments, the commands that
make weights and engines, the server's arguments, the notices, and what is filled into every config.pbtxt.
tests/golden/tensorrt-llm/templates stands for upstream's templates: the placeholders are upstream's, the text around
them is ours.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from checkout import ROOT

from labbuild.tensorrt_llm import commands
from labctl import repository
from labctl.artifacts.engines import Build
from labctl.artifacts.store import Artifact
from labctl.catalog import load_catalog
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import images
from labctl.settings import parse_assignments
from labctl.workspace import Workspace

GOLDEN = ROOT / "tests" / "golden" / "tensorrt-llm"
TEMPLATES = GOLDEN / "templates"
CASES = {
    "llama": "llama",
    "llama-static-fp8": "llama gpt_model_type=V1 quantization=fp8",
    "static-batching": "static-batching batch_scheduler_policy=max_utilization max_num_sequences=4",
    "inflight-batching": "inflight-batching",
    "inflight-batching-guaranteed-completion": "inflight-batching batch_scheduler_policy=guaranteed_completion "
    "max_tokens_in_paged_kv_cache=4096 kv_cache_free_gpu_mem_fraction=0.2 max_num_sequences=9 max_batch_size=16",
    "inflight-batching-decoupled": "inflight-batching decoupled_mode=true batch_scheduler_policy=max_utilization "
    "max_num_sequences=64 max_batch_size=8 max_num_tokens=4096",
    "codegen": "codegen max_batch_size=16",
    "modern": "modern enable_chunked_context=true enable_kv_cache_reuse=true max_num_tokens=256",
}


def text(case: str) -> str:
    """The golden text of a case, as the code has it now."""
    stack, *settings = CASES[case].split()
    settings = ["engine=tensorrt-llm", *settings]
    command = ["labctl", "up", stack, "--profile", "gpu"]
    command += [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(ROOT, Path(folder) / "cache")
        options = Options("gpu", parse_assignments(tuple(settings)), TEMPLATES)
        lab, name = load_catalog(workspace).stack(stack)
        plan = make_plan(workspace, lab, name, options, Path(folder) / "repository")
        lines = [*_plan(plan, workspace), *_repository(plan)]
    found = "\n".join([shlex.join(command), "", *lines, ""])
    return found.replace(folder, "/tmp/labs").replace(str(ROOT), "/checkout")


def _plan(plan: Plan, workspace: Workspace) -> Iterator[str]:
    yield f"image {plan.image}"
    given = images.target(plan.image) | images.build_arguments(plan.image)
    yield from _indented(*(f"{key}={value}" for key, value in given.items()))
    for artifact in plan.artifacts:
        yield artifact.title
        yield from _indented(*(shlex.join(argv) for argv in _made_by(artifact, workspace)))
    yield "server"
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
    return commands(artifact.options, artifact.source.locate(workspace), Path("/scratch"), artifact.locate(workspace))


def _repository(plan: Plan) -> Iterator[str]:
    """The rendered configurations, without the lines that they share with their template and those that set ""."""
    repository.render_repository(plan.request)
    for name, template in sorted(repository.origins(plan.request).items()):
        if template.suffix == ".pbtxt":
            known = template.read_text(encoding="utf-8").splitlines()
            lines = (plan.request.output / name).read_text(encoding="utf-8").splitlines()
            yield f"--- {name}"
            yield from (line for line in lines if line not in known and 'string_value: ""' not in line)


def _indented(*lines: str) -> Iterator[str]:
    return (f"  {line}" for line in lines if line)


def path(case: str) -> Path:
    """Where the golden text of a case is kept."""
    return GOLDEN / f"{case}.txt"


def write() -> None:
    """Write every golden file, and remove those of cases that are no more."""
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for case in CASES:
        path(case).write_text(text(case), encoding="utf-8")


if __name__ == "__main__":
    write()
