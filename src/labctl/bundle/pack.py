"""The bundle itself: a tar that holds the checkout, and below ``.bundle/`` what the checkout needs.

install                 scripts/install_bundle.sh: checks everything below, then installs it
<the checkout's files>
.bundle/about           key=value: format, version, machine, python, labs
.bundle/wheels/         what requirements/ locks, for this Python and this kind of machine
.bundle/cache/          weights and engines, as they lie in the cache
.bundle/images.tar      container images, where they were asked for
.bundle/SHA256SUMS      of every file above
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import platform
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from labctl.listener import Listener
from labctl.litter import is_litter
from labctl.runtimes import processes, whales
from labctl.runtimes.leftovers import staging
from labctl.runtimes.processes import Command
from labctl.workspace import Workspace
from labkit.disk import disk_errors, need_space
from labkit.errors import LabError

FORMAT = 1
FOLDER = ".bundle"
INSTALLER = Path("scripts/install_bundle.sh")
LOCKS = ("torch.txt", "labs.txt")
WHEELS = 700_000_000  # bytes of all that requirements/labs.txt and torch.txt lock
IMAGES = 2_400_000_000  # bytes of the two container images of the cpu profile
# Measured on a busy machine with two cores: 0.7 GB of wheels took 232 s, and all weights and engines of the labs 117 s.
DISK = 60e6  # bytes/s read, hashed and written
NET = 3e6  # bytes/s downloaded
MADE, MADE_S = 620_000_000, 117.0  # at most, where some of them are still to be made
OURS = (".bundle", "install")  # files that a bundle adds to the checkout
GIT_S = 60.0


@dataclass(frozen=True)
class Estimate:
    """The sizes of a bundle in bytes: ``wheels`` that are downloaded, ``images``, and ``total``.

    ``to_make``: the number of weights and engines that are still to be made; ``total`` does not include them.
    """

    wheels: int
    total: int
    images: int = 0
    to_make: int = 0

    @property
    def seconds(self) -> float:
        """To download the wheels, and to write all of it; without the building of images."""
        return self.wheels / NET + self.total / DISK

    def __str__(self) -> str:
        text = f"about {self.total / 1e9:.1f} GB and {max(1, round(self.seconds / 60))} min"
        if self.to_make:
            most, longest = (self.total + MADE) / 1e9, (self.seconds + MADE_S + MADE / DISK) / 60
            text += f" (up to {most:.1f} GB and {longest:.0f} min: {self.to_make} weights and engines are made first)"
        return f"{text}; {self.wheels / 1e9:.1f} GB of it are wheels to download"


class _Hashing:
    """A file that is hashed while tarfile reads it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self.digest.update(data)
        return data


def estimate(workspace: Workspace, artifacts: Iterable[Path], with_images: bool = False, to_make: int = 0) -> Estimate:
    """The estimate from the checkout and the cache; ``to_make``: the number of artifacts that are not cached yet."""
    images = IMAGES if with_images else 0
    sources = [workspace.root / path for path in checkout_files(workspace.root)]
    own = sum(path.stat().st_size for path in (*sources, *_below(artifacts)))
    return Estimate(WHEELS, WHEELS + images + own, images, to_make)


def write_bundle(
    target: Path,
    workspace: Workspace,
    labs: Sequence[str],
    artifacts: Iterable[Path],
    images: Sequence[str],
    listener: Listener,
) -> int:
    """Write the bundle and return its size in bytes. No half-written file is left.

    Args:
        labs: two-digit numbers of the labs that it serves.
        artifacts: folders of the cache (weights, engines) that are ready.
        images: names of container images that are here.
    """
    folders = sorted(set(artifacts))
    expected = estimate(workspace, folders, bool(images))
    need_space(target, expected.total + expected.wheels + expected.images)  # both are gathered beside it first
    with disk_errors(target), staging(workspace, target) as stage:
        listener.step("wheels of requirements/")
        _wheels(workspace, stage, listener)
        listener.done(f"{sum(path.stat().st_size for path in _below([stage / 'wheels'])) / 1e6:,.0f} MB")
        if images:
            listener.step("container images")
            save = Command(whales.docker_argv(lambda docker: docker.save([*images], output=stage / "images.tar")))
            failed = "the container images cannot be saved"
            processes.run_to_end(save, listener, failed, "docker info", merged=True, code="images-not-saved")
            listener.done(f"{(stage / 'images.tar').stat().st_size / 1e6:,.0f} MB")
        listener.step(target.name)
        part = stage / "bundle.tar"
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            sums: dict[str, str] = {}
            packed = [(workspace.root / path, str(path)) for path in checkout_files(workspace.root)]
            packed.append((workspace.root / INSTALLER, "install"))
            packed += [(path, f"{FOLDER}/cache/{path.relative_to(workspace.cache)}") for path in _below(folders)]
            gathered = [stage / "wheels"]
            if images:
                gathered.append(stage / "images.tar")
            packed += [(path, f"{FOLDER}/{path.relative_to(stage)}") for path in _below(gathered)]
            for path, name in packed:
                sums[name] = _add_file(tar, path, name)
            sums[f"{FOLDER}/about"] = _add_text(tar, f"{FOLDER}/about", machine_requirements(workspace, labs))
            listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
            _add_text(tar, f"{FOLDER}/SHA256SUMS", listing)
        size = part.stat().st_size
        part.replace(target)
    listener.done(f"{size / 1e6:,.0f} MB")
    return size


def machine_requirements(workspace: Workspace, labs: Sequence[str]) -> str:
    """The packing machine's facts, which ``install`` compares with the machine that it runs on."""
    project = tomllib.loads((workspace.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = {
        "format": FORMAT,
        "version": project["version"],
        "machine": f"{platform.system()} {platform.machine()}",
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "labs": " ".join(labs),
    }
    return "".join(f"{key}={value}\n" for key, value in facts.items())


def _wheels(workspace: Workspace, stage: Path, listener: Listener) -> None:
    """Download what the lock names, with its hashes, by the script that installs it."""
    script = workspace.root / "docker" / "install-packages.sh"
    locks = [str(workspace.root / "requirements" / name) for name in LOCKS]
    (stage / "wheels").mkdir()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    env = {"PATH": path, "LABS_PIP": "python -m pip", "LABS_DOWNLOAD": "wheels"}
    remedy = "check the network and pip's settings; PyTorch's CPU build may need LABS_TORCH_INDEX"
    command = Command(["sh", str(script), *locks], env, cwd=stage)
    processes.run_to_end(
        command, listener, "the wheels cannot be downloaded", remedy, merged=True, code="wheels-not-downloaded"
    )


def _below(places: Iterable[Path]) -> list[Path]:
    """All files of folders, and files themselves; without the locks of a cache."""
    paths = [path for place in places for path in (place, *place.rglob("*")) if path.is_file()]
    return sorted(path for path in paths if not path.name.endswith(".lock"))


def _add_file(tar: tarfile.TarFile, path: Path, name: str) -> str:
    """Add a file under that name. Returns its hash."""
    with path.open("rb") as stream:
        info = tar.gettarinfo(str(path.resolve()), name, stream)
        info.type, info.linkname = tarfile.REGTYPE, ""  # a hard link of a cache becomes a file of its own
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        hashing = _Hashing(stream)
        tar.addfile(info, hashing)
    return hashing.digest.hexdigest()


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> str:
    """Add a text as a file. Returns its hash."""
    info, data = tarfile.TarInfo(name), text.encode()
    info.size = len(data)
    tar.addfile(info, BytesIO(data))
    return hashlib.sha256(data).hexdigest()


def checkout_files(root: Path) -> list[Path]:
    """The checkout's own files, as sorted relative paths: what git tracks, or else what .gitignore does not exclude.

    Raises LabError: git does not list a clone's files.
    """
    if (root / ".git").exists():
        paths = [Path(name) for name in _tracked(root).split("\0") if name]
        return sorted(path for path in paths if (root / path).is_file())
    ignored = [line for line in (root / ".gitignore").read_text(encoding="utf-8").splitlines() if line.strip("/")]

    def is_own(path: Path) -> bool:
        litter = is_litter(path) and path.name != ".gitkeep"
        return path.parts[0] not in OURS and not litter and not any(_ignores(line, path) for line in ignored)

    files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    return sorted(path for path in files if is_own(path))


def _tracked(root: Path) -> str:
    """The tracked files, as git lists them: with a null character after each."""
    why = "git is not installed"
    with contextlib.suppress(OSError):
        ended = processes.run_short(["git", "-C", str(root), "ls-files", "-z"], root, GIT_S)
        if ended and ended.code == 0:
            return ended.out
        why = " ".join(ended.err.split()) if ended else f"git did not answer within {GIT_S:g} s"
    raise LabError(
        f"{root} is a clone, and its files cannot be listed",
        why,
        "install git (apt-get install git)",
        code="tracked-files-unknown",
    )


def _ignores(line: str, path: Path) -> bool:
    """Whether a line of .gitignore means that file, or a folder that it is in; one that begins with "/" is anchored."""
    name, parts = line.strip("/"), path.parts
    if line.startswith("/"):
        return fnmatch.fnmatch("/".join(parts[: name.count("/") + 1]), name)
    return any(fnmatch.fnmatch(part, name) for part in (parts[:-1] if line.endswith("/") else parts))
