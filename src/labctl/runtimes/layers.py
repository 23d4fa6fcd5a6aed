"""A layer: packages that a server of the local runtime finds before those of its own environment.

vLLM needs newer versions of packages that the labs also use, so ``labctl engines install vllm`` puts them into a
folder of the cache, and a stack that says ``packages: vllm`` has that folder first in its Python's path. One build is
for CPUs, and its PyTorch is the environment's own. Two are for NVIDIA GPUs, with PyTorch for CUDA in them: for CUDA 13,
and with an older vLLM for CUDA 12, where the driver or the chip is too old for that.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from labctl.architecture import X86, architecture
from labctl.listener import Listener
from labctl.runtimes import nvidia, processes, wheel
from labctl.runtimes.processes import Command
from labctl.workspace import Workspace, key_lock
from labkit.disk import replace_dir
from labkit.errors import LabError

NAMES = ("vllm",)
GPU = "-gpu"  # how the name of a build for GPUs ends
CUDA_12 = "-cuda12"  # and that of the one for CUDA 12
DOWNLOAD = {"vllm": 0.7e9, "vllm-gpu": 3.8e9, "vllm-gpu-cuda12": 5.1e9}  # bytes, about
# Bytes of free disk: a layer, and its downloads while it is made.
NEEDED = {"vllm": 2.5e9, "vllm-gpu": 16e9, "vllm-gpu-cuda12": 18e9}
LIBRARIES = {"vllm": ("libnuma.so.1", "libnuma1")}  # of the system, and Debian's package of it
OTHERS = "another engine (labctl list LAB shows them)"
PROGRESS = re.compile(r"^ *(?:Collecting|Downloading|Processing|Installing collected) .*")
CUDNN = re.compile(r"^nvidia-cudnn-cu(\d+)==", re.MULTILINE)  # which each PyTorch for CUDA requires
COMPILE = "import compileall, sys; compileall.compile_dir(sys.argv[1], quiet=2, workers=0)"


@dataclass(frozen=True)
class Layer:
    """The packages that ``requirements/NAME.txt`` locks, for the running Python; with ``gpu``, ``NAME-gpu.txt``.

    ``cuda_12``: its build for CUDA 12.
    """

    name: str
    workspace: Workspace
    gpu: bool = False
    cuda_12: bool = False

    @property
    def build(self) -> str:
        """The name with that of the build: "vllm", "vllm-gpu" or "vllm-gpu-cuda12"."""
        return self.name + GPU * self.gpu + CUDA_12 * self.cuda_12

    @property
    def lock(self) -> Path:
        """``LABS_NAME_LOCK`` names another one. Raises LabError where that is no file."""
        variable = f"LABS_{self.name.upper()}{'_GPU' * self.gpu}_LOCK"
        other = os.environ.get(variable)
        if other and not Path(other).is_file():
            raise LabError(
                f"{variable}: {other} is not a file",
                "it locks packages by hash, as requirements/ does",
                code="lock-missing",
            )
        return Path(other).absolute() if other else self.workspace.root / "requirements" / f"{self.build}.txt"

    @property
    def path(self) -> Path:
        """Its folder: one for each lock and Python, so that checkouts share it, and a new lock makes a new one."""
        key = hashlib.sha256(self.lock.read_bytes()).hexdigest()[:12]
        python = sysconfig.get_config_var("py_version_nodot")
        return self.workspace.cache / "layers" / f"{self.build}-py{python}-{key}"

    @property
    def ready(self) -> bool:
        """Whether it is installed: it appears whole, or not at all."""
        return self.path.is_dir()

    @property
    def elsewhere(self) -> str | None:
        """Why this machine cannot have it; None where it can. The build for CUDA 13 is for ARM too."""
        machine = architecture()
        if machine == X86 or (self.gpu and not self.cuda_12):
            return None
        return f"its package is built for {X86}, and this machine is {machine}"

    @property
    def cuda(self) -> int | None:
        """The first number of the CUDA that its PyTorch is built for; None for CPUs, or if its lock does not say."""
        found = CUDNN.search(self.lock.read_text(encoding="utf-8")) if self.gpu else None
        return int(found[1]) if found else None

    @property
    def sizes(self) -> str:
        """What it takes, in words."""
        return f"about {DOWNLOAD[self.build] / 1e9:.1f} GB to download, {self.needed / 1e9:.1f} GB of disk"

    @property
    def needed(self) -> float:
        """Bytes of free disk."""
        return NEEDED[self.build]

    @property
    def remedy(self) -> str:
        return f"labctl engines install {self.name}{' --profile gpu' * self.gpu}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that finds these packages first."""
        return {
            "LABS_PACKAGES": str(self.path),  # for Triton's stubs, which leave PYTHONPATH unread (labserve/serving.py)
            "PYTHONPATH": os.pathsep.join([str(self.path), wheel.site_packages()]),
        }

    def require(self) -> Path:
        """Its folder. Raises LabError where it is not installed, or lacks a library of the system."""
        if not self.ready and self.elsewhere:
            raise LabError(f"{self.name} cannot run here", self.elsewhere, OTHERS, code="layer-unsupported")
        if not self.ready:
            raise LabError(
                f"{self.name} is not installed",
                "it is a layer of its own over .venv",
                self.remedy,
                code="layer-missing",
            )
        if self.build not in LIBRARIES:
            return self.path
        library, package = LIBRARIES[self.build]
        try:
            ctypes.CDLL(library)
        except OSError:
            why, remedy = f"there is no {library}", f"apt-get install {package} (Debian, Ubuntu)"
            raise LabError(f"{self.name} cannot compute on this machine", why, remedy, code="layer-broken") from None
        return self.path

    def install(self, listener: Listener) -> None:
        """Install it; harmless where it is there."""
        listener.step(f"the packages of {self.lock.name}: {self.sizes}")
        listener.done(f"in {self.path}" if self.ready else self._install(listener))

    def _install(self, listener: Listener) -> str:
        if self.elsewhere:
            raise LabError(f"{self.name} cannot be installed", self.elsewhere, OTHERS, code="layer-unsupported")
        with key_lock(self.path):
            if self.ready:
                return f"in {self.path}"
            self._require_room()
            if self.cuda and (gpus := _gpus()):  # a cluster's login node has none
                nvidia.require_cuda(gpus[0], self.cuda)
            with replace_dir(self.path) as fresh:
                self._fill(listener, fresh)
            size = sum(path.lstat().st_size for path in self.path.rglob("*") if path.is_file())
        return f"{size / 1e9:.1f} GB in {self.path}"

    def _fill(self, listener: Listener, target: Path) -> None:
        """Install it into ``target``, and compile it once, on all processors: a server would, for a minute.

        Packages have files for other Pythons (PyTorch one for 3.12), which no import reads: not an error, as it is of
        ``python -m compileall``.
        """

        def progress(line: str) -> None:
            if PROGRESS.match(line):  # which package comes now
                listener.progress(line.strip()[:72])

        script = str(self.workspace.root / "docker" / "install-packages.sh")
        pip = {"LABS_PIP": f"{sys.executable} -m pip", "LABS_COMPILE": f"--no-compile --target {target}"}
        for command in (
            Command(["sh", script, str(self.lock)], pip),
            Command([sys.executable, "-c", COMPILE, str(target)]),
        ):
            status, _, tail = processes.run_tool(command, listener, progress, merged=True)
            processes.require_success(
                status,
                tail,
                f"the packages of {self.name} were not installed",
                f"check the network and pip's settings, then {self.remedy}",
                code="layer-install-failed",
            )

    def _require_room(self) -> None:
        free = shutil.disk_usage(next(p for p in self.path.parents if p.is_dir())).free
        if free < self.needed:
            raise LabError(
                f"{self.name} needs {self.needed / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free",
                f"it goes into {self.path.parent}",
                "free some space, or set LABS_CACHE to a folder on another disk",
                code="disk-too-full",
            )


def layer(name: str, workspace: Workspace, profile: str | None = None) -> Layer:
    """Return the layer of that name, in the build for a profile, or in what fits: for GPUs where a driver answers.

    Raises LabError for another name.
    """
    if name not in NAMES:
        raise LabError(
            f"there is no engine '{name}' to install", f"there are: {', '.join(NAMES)}", code="layer-unknown"
        )
    gpu = profile == "gpu" if profile else bool(_gpus())
    return gpu_layer(workspace) if gpu else Layer(name, workspace)


def gpu_layer(workspace: Workspace) -> Layer:
    """vLLM's build for the GPUs of this machine."""
    return Layer(NAMES[0], workspace, gpu=True, cuda_12=any(map(nvidia.takes_only_cuda_12, _gpus()[:1])))


def _gpus() -> list[nvidia.Gpu]:
    try:
        return nvidia.gpus()
    except LabError:
        return []


def cuda_of(stack_packages: str | None, workspace: Workspace) -> int | None:
    """The CUDA of the PyTorch that computes on a GPU in the local runtime: this environment's, or that of the layer."""
    return (None if stack_packages else wheel.torch_cuda()) or gpu_layer(workspace).cuda


def require_pytorch(workspace: Workspace) -> None:
    """Raises LabError where nothing that is here, or that a layer would bring, can compute on this machine's GPU."""
    gpu, found = nvidia.gpus()[0], gpu_layer(workspace)
    if cuda := cuda_of(None, workspace):
        nvidia.require_cuda(gpu, cuda)
    if not wheel.torch_cuda() and not found.ready:
        raise LabError(
            f"PyTorch of this environment cannot use {gpu.name}",
            "it is a CPU build, or not installed",
            f"{found.remedy}, which has a CUDA build; or rm -r .venv, then make setup with LABS_TORCH_INDEX naming an "
            "index of CUDA builds",
            code="torch-without-cuda",
        )


def packages_of(stack_packages: str | None, workspace: Workspace, profile: str) -> Layer | None:
    """The layer in which a server of the local runtime computes; None where its own environment does.

    On a GPU that is the layer with PyTorch for CUDA also for other models, where the environment has a CPU build.
    """
    if stack_packages:
        return layer(stack_packages, workspace, profile)
    if profile == "gpu" and not wheel.torch_cuda() and (found := gpu_layer(workspace)).ready:
        return found
    return None
