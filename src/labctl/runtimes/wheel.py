"""The real Triton server out of its PyPI wheel: what it needs around it to run as a plain process.

The wheel has one stub for each CPython, and the python backend wants that of *this* Python beside it. So a small
backend folder of our own links to both; the wheel's own files are never touched.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from labctl.workspace import key_lock
from labkit.disk import replace_dir
from labkit.errors import LabError

WHEEL = "nvidia-pytriton"
TRITON_OF_WHEEL = {"0.7.0": "2.51.0"}
SETUP = "make setup"
OR_DOCKER = "or start a Docker engine and use --runtime compose"


@dataclass(frozen=True)
class Wheel:
    """Where the wheel's parts are on this machine."""

    site: Path
    version: str

    @property
    def server(self) -> Path:
        return self.site / "pytriton" / "tritonserver"

    @property
    def binary(self) -> Path:
        return self.server / "bin" / "tritonserver"

    @property
    def stub(self) -> Path:
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.server / "python_backend_stubs" / minor / "triton_python_backend_stub"

    @property
    def caches(self) -> Path:
        """Where Triton looks for what keeps answers (--cache-config)."""
        return self.server / "caches"

    @property
    def libraries(self) -> Path:
        return self.site / "nvidia_pytriton.libs"

    def backends(self, cache: Path) -> Path:
        """The backend folder of this wheel and the running Python."""
        return cache / f"{self.version}-{sysconfig.get_config_var('py_version_nodot')}"

    def has_backends(self, cache: Path) -> bool:
        python = self.backends(cache) / "python"
        links = {path.name: str(path.readlink()) for path in python.glob("*") if path.is_symlink()}
        return links == self._backend_links

    def make_backends(self, cache: Path) -> None:
        """Make the backend folder, swapped in whole, unless another command has just made it."""
        with key_lock(self.backends(cache)):
            if self.has_backends(cache):
                return
            with replace_dir(self.backends(cache)) as fresh:
                (fresh / "python").mkdir()
                for name, target in self._backend_links.items():
                    (fresh / "python" / name).symlink_to(target)

    @property
    def _backend_links(self) -> dict[str, str]:
        backend = self.server / "backends" / "python"
        names = ("libtriton_python.so", "triton_python_backend_utils.py")
        return {"triton_python_backend_stub": str(self.stub), **{name: str(backend / name) for name in names}}


def find_wheel() -> Wheel:
    """The installed wheel. Raises LabError: it is not installed, or has no stub for the running Python."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise LabError(
            "Triton is not installed in this Python environment",
            f"the local runtime takes the server from the {WHEEL} wheel, which {sys.executable} does not have",
            f"{SETUP}, {OR_DOCKER}",
            code="triton-missing",
        )
    wheel = Wheel(Path(next(iter(spec.submodule_search_locations))).parent, importlib.metadata.version(WHEEL))
    for part in (wheel.binary, wheel.stub):
        if not part.is_file():
            raise LabError(
                f"the {WHEEL} wheel has no {part.name} for Python {platform.python_version()}",
                f"{part} is missing",
                f"use Python 3.11 or 3.12 on Linux with glibc 2.35 or newer, {OR_DOCKER}",
                code="triton-without-python",
            )
    return wheel


def libpython() -> Path | None:
    """The shared libpython of the interpreter that the stub will import its standard library from."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folders = (Path(sys.base_prefix) / "lib", Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib"))
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in (*folders, Path("/usr/lib") / multiarch):
        if ".so" in name and (folder / name).is_file():
            return folder / name
    return None


def torch_cuda() -> int | None:
    """Return the first number of the CUDA that this environment's PyTorch is built for, as it says itself.

    Read from the file of ``torch.version.cuda``: importing PyTorch takes a second, and on ARM its version says nothing.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    said = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b.*= *['\"](\d+)", said, re.MULTILINE)
    return int(cuda[1]) if cuda else None


def site_packages() -> str:
    """Where the server's python backend finds packages."""
    return sysconfig.get_path("purelib")


def environment(wheel: Wheel) -> dict[str, str]:
    """This process's environment with what the server and its stubs need.

    The stub needs the libpython of *this* interpreter (another patch level of it cannot import ssl) and takes its
    site-packages from the environment that is first in PATH.
    """
    env = dict(os.environ)
    libraries = [library.parent] if (library := libpython()) else []
    own = [*map(str, libraries), str(wheel.libraries)]
    # The caller's come last: in a notebook or on a cluster, the driver's libraries may be found by this variable alone.
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, [*own, env.get("LD_LIBRARY_PATH")]))
    env["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), env.get("PATH", "")])
    env["PYTHONPATH"] = site_packages()
    # Packages are installed uncompiled: a stub that kept no bytecode would compile PyTorch again at each start (6 s).
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        env.pop(name, None)  # a server has no business with it
    return env
