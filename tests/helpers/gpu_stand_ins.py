"""Stand-ins for the programs that the pages about GPUs call. Each notes its call, and refuses what the real one would.

``installed`` puts them into a folder for PATH; the file itself is what runs under each of their names. ``labctl`` is
the real one, up to what needs a GPU, a download or a build.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("apptainer", "apt-get", "docker", "enroot", "git", "kubectl", "labctl", "make", "pip", "srun", "sudo")
IMAGES = ("labs-server:gpu-0123456789ab", "labs-client:0123456789ab")
COMPAT = "/usr/local/cuda-13.0/compat"
REAL = ("doctor", "render")  # commands of labctl that need no GPU
INSTALL = """# as `labctl engines install vllm --profile gpu`, without pip
from labctl.listener import Silent
from labctl.runtimes.layers import Layer, layer
from labctl.workspace import Workspace
Layer._fill = lambda *_: None
layer("vllm", Workspace.find(), "gpu").install(Silent())
"""
PERSON = dict(os.environ)  # before a test gives itself another PATH
ROOT = Path(__file__).resolve().parents[2]


def installed(folder: Path, card: str) -> dict[str, str]:
    """The environment of a person on a machine with that card, as nvidia-smi says it."""
    for part in ("bin", "hardware"):
        (folder / part).mkdir(parents=True)
    for name in NAMES:
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    smi = folder / "hardware" / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{card}'\n")
    smi.chmod(0o755)
    usual = {key: value for key, value in PERSON.items() if not key.startswith(("LABS_", "PIP_"))}
    path = f"{folder / 'hardware'}{os.pathsep}{usual['PATH']}"
    here = {"STAND_INS": str(folder), "REAL_PATH": path, "LABS_CACHE": str(folder / "cache"), "LD_LIBRARY_PATH": ""}
    return {**usual, **here, "PATH": f"{folder / 'bin'}{os.pathsep}{path}"}


def checkout(root: Path) -> Path:
    """A clone of this checkout, as links, before `make setup`."""
    root.mkdir()
    for path in ROOT.iterdir():
        if path.name[0] != "." and path.name != "results":
            (root / path.name).symlink_to(path)
    return root


def calls(folder: Path, name: str = "") -> list[list[str]]:
    """What was called, or how that program was."""
    noted = folder / "calls"
    found = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    return [call for call in found if name in ("", call[0])]


def set_up(root: Path) -> None:
    """What `make setup` makes, as far as the pages name it."""
    bin = root / ".venv" / "bin"
    bin.mkdir(parents=True, exist_ok=True)
    for name in ("labctl", "pip"):
        shutil.copy2(Path(os.environ["STAND_INS"]) / "bin" / name, bin / name)
    (bin / "activate").touch()


def require(fact: object, text: str) -> None:
    if not fact:
        sys.exit(text)


def _mounted(pairs: str) -> None:
    for pair in pairs.split(","):
        source, _, target = pair.partition(":")
        require(Path(source).is_dir() and target.startswith("/"), f"{pair} is not a folder and its place")


def labctl(words: list[str]) -> None:
    """Real where it can be. Doctor's findings are the test's to judge, and not its exit status."""
    if words[:2] == ["images", "build"]:
        print("\n".join(IMAGES))
    elif words[:2] == ["engines", "install"]:
        subprocess.run([sys.executable, "-c", INSTALL], env=_real(), check=True)
    elif words[0] in REAL:
        done = subprocess.run(
            [sys.executable, "-m", "labctl", *words], env=_real(), capture_output=True, text=True, check=False
        )
        with (Path(os.environ["STAND_INS"]) / "said").open("a") as said:
            said.write(done.stdout + done.stderr)
        require(words[0] == "doctor" or not done.returncode, done.stderr)


def _real() -> dict[str, str]:
    """The environment of the real labctl. The path of NVIDIA's package for older drivers is the test's own."""
    paths = os.environ["LD_LIBRARY_PATH"].replace(COMPAT, os.environ["STAND_INS"] + COMPAT)
    return {**os.environ, "PATH": os.environ["REAL_PATH"], "LABS_ROOT": str(Path.cwd()), "LD_LIBRARY_PATH": paths}


def containers(name: str, words: list[str]) -> None:
    """What moves images, and what runs in them."""
    match [name, *words]:
        case ["docker", "save", "--output", target, *images]:
            require(images and set(images) <= set(IMAGES), f"no such image: {images}")
            Path(target).touch()
        case ["docker", "load", "--input", source]:
            require(Path(source).is_file(), f"docker load: {source} is not there")
        case ["docker", "build", "-f", file, "--build-arg", server, "--build-arg", clone, *rest]:
            require(Path(file).is_file() and server == f"SERVER={IMAGES[0]}", f"docker build: {file}, {server}")
            require(clone == f"CHECKOUT={Path.cwd()}", f"docker build: {clone}")
            _, context, _, _, _ = rest
            repository = Path(context.removeprefix("repository="))
            require(list(repository.glob("*/config.pbtxt")), f"docker build: {repository} is no model repository")
        case ["apptainer", "build", target, source]:
            require(Path(source.removeprefix("docker-archive://")).is_file(), f"apptainer build: {source} is not there")
            Path(target).touch()
        case ["apptainer", "exec", "--nv", "--bind", mounts, image, "serve", *_]:
            require(Path(image).is_file(), f"apptainer exec: {image} is not there")
            _mounted(mounts)
        case ["enroot", "import", "--output", target, source]:
            require(source == f"dockerd://{IMAGES[0]}", f"enroot import: {source}")
            Path(target).touch()
        case ["srun", *rest]:
            require("--gres=gpu:1" in rest, "srun: no GPU is asked for")
            own = next(at for at, word in enumerate(rest) if not word.startswith("--"))
            options = dict(word.partition("=")[::2] for word in rest[:own])
            if squashed := options.get("--container-image"):
                require(Path(squashed).is_file() and rest[own] == "serve", f"srun: {squashed}, {rest[own]}")
                _mounted(options["--container-mounts"])
                return
            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
            os.execvp(rest[own], rest[own:])
        case ["docker", "push", _]:
            pass
        case _:
            sys.exit(f"the stand-in for {name} does not know {words}")


def main(name: str, words: list[str]) -> None:
    folder = Path(os.environ["STAND_INS"])
    with (folder / "calls").open("a") as file:
        file.write(json.dumps([name, *words]) + "\n")
    match [name, *words]:
        case ["labctl", *_]:
            labctl(words)
        case ["sudo", program, *rest]:
            os.execvp(program, [program, *rest])
        case ["apt-get", "install", *packages]:
            if "cuda-compat-13-0" in packages:
                compat = Path(str(folder) + COMPAT)
                compat.mkdir(parents=True)
                (compat / "libcuda.so.580.95.05").touch()
                (compat / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
        case ["git", "clone", _, target]:
            checkout(Path(target))
        case ["make", "setup"]:
            require(Path("Makefile").is_file(), "make setup: not in a clone")
            set_up(Path.cwd())
        case ["pip", "download", "--dest", target, *_]:
            Path(target).mkdir(exist_ok=True)
        case ["docker" | "apptainer" | "enroot" | "srun", *_]:
            containers(name, words)
        case ["kubectl", *rest] if "-k" in rest:
            require((Path(rest[rest.index("-k") + 1]) / "kustomization.yaml").is_file(), f"kubectl: {rest}")
        case ["pip", "config" | "show", *_] | ["kubectl", *_]:
            pass
        case _:
            sys.exit(f"the stand-in for {name} does not know {words}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
