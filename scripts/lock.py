"""Write ``requirements/``: every version and hash that ``make setup`` and the images install, from pyproject.toml.

make lock                       keeps what is locked, adds what pyproject.toml newly asks for
make lock ARGS=--upgrade        the newest of everything that pyproject.toml allows
make lock ARGS="--upgrade-package NAME"

One resolution (uv's) serves Python 3.11 and 3.12 on x86_64 and on arm64, so all files agree; each has the hashes of
both kinds of wheels. Only vllm.txt, aiperf.txt, guidellm.txt and gpu.txt are for x86_64 alone.
Three things are not as usual:

- PyTorch's wheels differ from index to index under one version, so it is locked by version alone, in torch.txt, one
  line a machine. Its own requirements, those of a CPU build, are said in pyproject.toml.
- vLLM (vllm.txt) is a resolution of its own: it is laid over .venv, and brings what it needs in other versions.
  So are AIPerf (aiperf.txt) and GuideLLM (guidellm.txt), whose environments have nothing of .venv; in GuideLLM's is
  PyTorch too, as in torch.txt.
- nvidia-pytriton and optimum-intel are locked without what they require (pyproject.toml says why). So is everything
  installed: with ``--no-deps``, since the lock is complete.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EVERYTHING, ALL = "labs.txt", "--all-extras"
SITE = "site.txt"  # make site: beside the labs' packages, in an environment of its own
# File: the extras and dependency groups in it, beside the base requirements.
FILES = {
    EVERYTHING: (ALL, "no-deps", "guard"),  # make setup
    "server.txt": ("serve", "export", "grammar", "no-deps"),
    "client.txt": ("load", "openai"),  # and the door in containers
    "chat.txt": ("chat",),
    "guard.txt": ("guard",),
    "build.txt": ("build",),  # what makes the project's own package, inside the image builds
    SITE: ("site",),
}
ALONE = (("build",), ("guard",), ("site",))  # groups without the base requirements
GPU, GPU_PACKAGES = "gpu.txt", ("llguidance", "numpy", "onnxruntime", "torch", "transformers")
VLLM, AIPERF, GUIDELLM = "vllm.txt", "aiperf.txt", "guidellm.txt"
GPU_PYTHON = ">=3.10,<3.13"  # of NVIDIA's images, older and newer
# What the labs run on, in uv's own order of words: said in the question, left out of every line of the answer.
CPYTHON = "implementation_name == 'cpython'"
X86, ARM = (
    f"platform_machine == '{machine}' and platform_python_implementation == 'CPython' and sys_platform == 'linux'"
    for machine in ("x86_64", "aarch64")
)
SAID = {(X86,): f"{CPYTHON} and {X86}", (X86, ARM): f"{CPYTHON} and (({ARM}) or ({X86}))"}
TORCH_NOTE = "PyTorch's wheels differ from index to index (CPU, CUDA) under one version: a hash would name one index."


def main() -> None:
    """Lock into a temporary folder; the files are replaced only when all of them are there."""
    parser = argparse.ArgumentParser(description="lock the requirements")
    parser.add_argument("--upgrade", action="store_true", help="the newest of everything")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME", help="the newest of NAME")
    options = parser.parse_args()
    upgrade = ["--upgrade"] * options.upgrade + [f"--upgrade-package={name}" for name in options.upgrade_package]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (ROOT / "requirements").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = lock(project, Path(folder), upgrade)
    for name, text in made.items():
        # In one file alone: a requirement of the tests must not change the files that the images are built from.
        source = f" Its requirements: {inputs(project)}." if name == EVERYTHING else ""
        header = f"# Written by `make lock` from pyproject.toml; do not edit.{source}"
        (ROOT / "requirements" / name).write_text(f"{header}\n{text}", encoding="utf-8")
    print(f"requirements/: {', '.join(made)}", file=sys.stderr)


def lock(project: dict[str, Any], folder: Path, upgrade: Iterable[str]) -> dict[str, str]:
    """The text of each file of ``requirements/``, without its header."""
    asked = _requirements(project)
    pins = _keep(project, folder / "pins", (EVERYTHING, SITE), upgrade)
    made = _exports(project, pins, folder / "cpu", FILES, (X86, ARM))
    wanted = [requirement for requirement in asked if requirement.partition("=")[0].partition(">")[0] in GPU_PACKAGES]
    image: dict[str, Any] = {
        "project": {"name": "gpu", "version": "0", "requires-python": GPU_PYTHON, "dependencies": wanted}
    }
    made |= _exports(image, _keep(image, folder / "gpu-pins", (GPU,), upgrade), folder / "gpu", {GPU: ()})
    for name in (VLLM, AIPERF, GUIDELLM):
        made |= _own(project, name, folder, upgrade)
    torch = [requirement.replace(";", " ;") for requirement in asked if requirement.startswith("torch==")]
    return {**made, "torch.txt": "\n".join([f"# {TORCH_NOTE}", *torch, ""])}


def inputs(project: dict[str, Any]) -> str:
    """A digest of all that decides the lock: it stands in labs.txt, and a test compares it."""
    decisive = {
        **{key: project["project"].get(key) for key in ("requires-python", "dependencies", "optional-dependencies")},
        "groups": project.get("dependency-groups"),
        "uv": project.get("tool", {}).get("uv"),
        **{name: project["tool"]["labctl"][name] for name in ("vllm", "aiperf", "guidellm")},
        "files": [FILES, GPU_PACKAGES, GPU_PYTHON],
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def _own(project: dict[str, Any], file: str, folder: Path, upgrade: Iterable[str]) -> dict[str, str]:
    """A resolution of its own: vLLM is laid over .venv, without PyTorch, which is there; the load tools stand alone."""
    name = file.removesuffix(".txt")
    asked = project["tool"]["labctl"][name]
    rules = {key: asked[key] for key in ("override-dependencies", "exclude-dependencies") if key in asked}
    layer: dict[str, Any] = {
        "project": {
            "name": f"{name}-layer",
            "version": "0",
            "requires-python": project["project"]["requires-python"],
            "dependencies": asked["dependencies"],
        },
        "tool": {"uv": {"dependency-metadata": project["tool"]["uv"]["dependency-metadata"], **rules}},
    }
    return _exports(layer, _keep(layer, folder / f"{name}-pins", (file,), upgrade), folder / name, {file: ()})


def _requirements(project: dict[str, Any]) -> list[str]:
    own = project["project"]
    return [*own["dependencies"], *(r for extra in own.get("optional-dependencies", {}).values() for r in extra)]


def _keep(project: dict[str, Any], folder: Path, names: tuple[str, ...], upgrade: Iterable[str]) -> list[str]:
    """The pins that a new resolution of ``project`` should have: today's where they still fit."""
    _write(_project(project, []), folder)
    today, pins = [ROOT / "requirements" / name for name in names], folder / "pins.txt"
    pins.write_bytes(b"".join(path.read_bytes() for path in today if path.is_file()))
    extras = [ALL, *(f"--group={group}" for group in project.get("dependency-groups", {}))]
    minimum = project["project"]["requires-python"].removeprefix(">=").partition(",")[0]
    _uv(
        "pip",
        "compile",
        "pyproject.toml",
        "--universal",
        f"--python-version={minimum}",
        "--no-header",
        "--no-annotate",
        *extras,
        f"--output-file={pins}",
        *upgrade,
        folder=folder,
    )
    return [line for line in pins.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def _exports(
    project: dict[str, Any],
    pins: list[str],
    folder: Path,
    files: dict[str, tuple[str, ...]],
    machines: tuple[str, ...] = (X86,),
) -> dict[str, str]:
    _write(_project(project, pins, machines), folder)
    _uv("lock", folder=folder)
    made = {}
    for name, parts in files.items():
        groups = project.get("dependency-groups", {})
        chosen = [ALL if part == ALL else f"--group={part}" if part in groups else f"--extra={part}" for part in parts]
        only = [f"--only-group={parts[0]}"] if parts in ALONE else chosen
        torch = [] if name == GPU else ["--no-emit-package=torch"]
        text = _uv(
            "export",
            "--frozen",
            "--no-default-groups",
            "--no-emit-project",
            "--no-header",
            "--no-annotate",
            *torch,
            *only,
            folder=folder,
        )
        made[name] = text.replace(f" ; {SAID[machines]}", "").replace(f" and {SAID[machines]}", "")
    return made


def _project(project: dict[str, Any], pins: list[str], machines: tuple[str, ...] = (X86,)) -> dict[str, Any]:
    """The same requirements for these machines, held to these pins."""
    own = project["project"]
    below = own["requires-python"].rpartition("<")[2]
    uv = {
        **project.get("tool", {}).get("uv", {}),
        "environments": [f"{CPYTHON} and {machine} and python_full_version < '{below}'" for machine in machines],
        "constraint-dependencies": pins,
    }
    return {"project": own, "dependency-groups": project.get("dependency-groups", {}), "tool": {"uv": uv}}


def _write(project: dict[str, Any], folder: Path) -> None:
    import tomlkit

    folder.mkdir()
    own = {k: v for k, v in project["project"].items() if k not in ("readme", "license", "scripts")}
    (folder / "pyproject.toml").write_text(tomlkit.dumps({**project, "project": own}), encoding="utf-8")


def _uv(*arguments: str, folder: Path) -> str:
    import uv

    command = [uv.find_uv_bin(), *arguments, f"--python={sys.executable}", "--quiet"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"uv {arguments[0]} failed")
    return done.stdout


if __name__ == "__main__":
    main()
