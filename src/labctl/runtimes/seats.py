"""A seat: where one learner's code runs, apart from the code of all others on the same machine.

As root a seat is a user of its own without privileges, in namespaces of its own: it sees neither other processes nor
other servers' loopback ports, and `/tmp` and `/dev/shm` are its own. They end with the process that holds them, which
ends with the hub. Without root there is no such border, and the seat is a folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from labctl.runtimes import keeper
from labctl.workspace import Workspace
from labkit import nofollow
from labkit.errors import LabError

FIRST_USER = 61_000  # the seats' users are the numbers after it; no account has them
TOOLS = ("unshare", "nsenter", "setpriv", "prlimit", "nice", "env", "sh")
MOST_OUTPUT = 2**20  # bytes that are read of what a seat's process says
MOST_FILE, MOST_TASKS = 2 * 2**30, 1000  # bytes of a file that it writes; processes and threads
MOST_CPU = "200000"  # microseconds of processor time in each 0.1 s: two processors, the machine that the labs are for
READY_S, END_S = 20.0, 10.0
CGROUPS = Path("/sys/fs/cgroup")
CLONE_NEWNET = 0x40000000
Process = subprocess.Popen[str]
OWN = (".labs", "exercises", "results", "site")  # of a checkout: what each seat has for itself
# The first process of a seat's namespaces, as root. It hides every folder that the seat's user could not walk through
# or that all users write to, puts the folders that are needed back, and then waits for the hub to end.
HOLDER = """
import ctypes, fcntl, os, signal, socket, struct, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind, flags=0, options=""):
    if libc.mount(*map(str.encode, (source, target, kind)), ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")
mount("proc", "/proc", "proc")
with socket.socket() as loopback:
    fcntl.ioctl(loopback, 0x8914, struct.pack("16sH22x", b"lo", 0x49))
hidden = {"/tmp": "1777", "/dev/shm": "1777"}
kept = sorted(set(sys.argv[1:]), key=len)
for path in kept:
    parents = [path[:at] for at, letter in enumerate(path) if letter == "/" and at]
    closed = [one for one in parents if one in hidden or not os.stat(one).st_mode & 1]
    if closed:
        hidden.setdefault(closed[0], "755")
below = [path for path in kept if any(path.startswith(one + "/") for one in hidden)]
opened = {path: os.open(path, os.O_PATH) for path in below}
for folder, mode in hidden.items():
    mount("tmpfs", folder, "tmpfs", 6, f"mode={mode},size=1g")
for path, number in opened.items():
    os.makedirs(path, exist_ok=True)
    mount(f"/proc/self/fd/{number}", path, "", 0x5000)
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class Seat:
    """One seat. ``number`` begins at 1; ``apart``: it has a user and namespaces of its own, which needs root."""

    workspace: Workspace  # the hub's
    number: int
    apart: bool
    memory_mib: int
    idle_s: float
    _holder: subprocess.Popen[str] | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def folder(self) -> Path:
        return self.workspace.state / "hub" / "seats" / f"{self.number:02d}"

    @property
    def user(self) -> int:
        return FIRST_USER + self.number

    @property
    def used(self) -> bool:
        return self.folder.is_dir()

    def prepare(self) -> None:
        """Make the seat's folder: the checkout and the cache as links, all else its own. Nothing of it runs yet."""
        for path in (self.workspace.root, self.workspace.cache):
            if self.apart and not path.stat().st_mode & 1:
                raise LabError(f"learners cannot enter {path}", "it is closed to other users", f"chmod o+x {path}")
        for path in (self.folder.parent.parent, self.folder.parent):
            path.mkdir(parents=True, exist_ok=True)
            nofollow.require_own(path, "folder")
            path.chmod(0o711)
        fresh = not self.folder.exists()
        if fresh:
            self.folder.mkdir(mode=0o700)
            for origin in self.workspace.root.iterdir():
                if origin.name not in OWN and not origin.name.startswith("."):
                    (self.folder / origin.name).symlink_to(origin)
            for folder in (path for path in self.workspace.cache.iterdir() if path.is_dir()):
                (self.folder / "cache" / folder.name).mkdir(parents=True)
                for origin in folder.iterdir():
                    if not origin.name.startswith("."):
                        (self.folder / "cache" / folder.name / origin.name).symlink_to(origin)
            (self.folder / "tmp").mkdir()
        status = self.folder.lstat()
        if fresh and self.apart:
            for path in (self.folder, *self.folder.rglob("*")):
                os.lchown(path, self.user, self.user)
        elif not fresh and status.st_uid != (self.user if self.apart else os.getuid()):
            raise LabError(f"{self.folder} belongs to another user", "", "labctl hub reset")

    def run(self, arguments: Sequence[str], given: str, seconds: float) -> str | None:
        """What a module of ours says in the seat; None: it took too long. Servers that it starts go on.

        Raises LabError: the seat cannot be entered.
        """
        with self.start(arguments) as process:
            assert process.stdin and process.stdout
            out: list[str] = []
            stdin, stdout = process.stdin, process.stdout
            reading = threading.Thread(target=lambda: out.append(stdout.read(MOST_OUTPUT)), daemon=True)
            reading.start()
            with contextlib.suppress(BrokenPipeError):
                stdin.write(given)
                stdin.close()
            reading.join(seconds)
            return None if reading.is_alive() else "".join(out)

    @contextlib.contextmanager
    def start(self, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        """A Python module in the seat, with its streams as pipes; it ends with the block."""
        argv = [*self._entrance(), sys.executable, "-m", *arguments]
        pipe = subprocess.PIPE
        log = self.workspace.state / "hub" / f"seat-{self.number:02d}.log"
        with (
            os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as errors,
            subprocess.Popen(
                argv,
                stdin=pipe,
                stdout=pipe,
                stderr=errors,
                start_new_session=True,
                preexec_fn=keeper.die_with_parent,
                encoding="utf-8",
                errors="replace",
            ) as process,
        ):
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def connect(self, port: int) -> socket.socket:
        """A connection to a port of the seat's own loopback. Raises OSError."""
        if not self.apart:
            return socket.create_connection(("127.0.0.1", port), 5.0)
        found: list[socket.socket | OSError] = []

        def enter() -> None:  # a namespace is a thread's; a socket stays in the one that it was made in
            try:
                with Path(f"/proc/{self._inside()}/ns/net").open("rb") as net:
                    if ctypes.CDLL(None, use_errno=True).setns(net.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                found.append(socket.create_connection(("127.0.0.1", port), 5.0))
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    def memory(self) -> int:
        """Bytes that the seat's processes have in memory; shared pages are counted in each."""
        total = 0
        for process in psutil.process_iter(["uids"]):
            with contextlib.suppress(psutil.Error, AttributeError):
                if self.apart and process.info["uids"].real == self.user:
                    total += process.memory_info().rss
        return total

    def close(self) -> None:
        """End all processes of the seat."""
        with self._lock:
            if self._holder:
                self._holder.kill()
                self._holder.wait()
                for stream in (self._holder.stdin, self._holder.stdout):
                    if stream:
                        stream.close()
                self._holder = None
        for group, *_ in self._groups():
            deadline = time.monotonic() + END_S
            while self.apart and group.is_dir() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.05)

    # -- how it is entered -----------------------------------------------------------------------------------------

    def _entrance(self) -> list[str]:
        """The words before a command's own that take it into the seat."""
        variables = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "USER": f"learner-{self.number}",
            "TMPDIR": str(self.folder / "tmp"),
            "LABS_ROOT": str(self.folder),
            "LABS_CACHE": str(self.folder / "cache"),
            "LABS_EXERCISE_IDLE_S": f"{self.idle_s:g}",
        }
        env = ["env", "-C", str(self.folder), "-i", *(f"{name}={value}" for name, value in variables.items())]
        if not self.apart:
            return ["nice", "-n", "5", *env]
        inside, user = str(self._inside()), str(self.user)
        joined = [str(group / "cgroup.procs") for group, *_ in self._groups() if group.is_dir()]
        join = "".join(f"echo $$ > {path}; " for path in joined)
        return [
            *("sh", "-c", join + 'exec "$@"', "seat"),
            *("nsenter", "--target", inside, "--net", "--mount", "--pid"),
            *("prlimit", f"--nproc={MOST_TASKS}", f"--fsize={MOST_FILE}", "--core=0", "nice", "-n", "5"),
            *("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--pdeathsig", "KILL"),
            *env,
        ]

    def _inside(self) -> int:
        """The process that holds the seat's namespaces, which is started where there is none."""
        with self._lock:
            if self._holder is None or self._holder.poll() is not None:
                self._holder = self._hold()
            return psutil.Process(self._holder.pid).children()[0].pid

    def _hold(self) -> subprocess.Popen[str]:
        for group, *limits in self._groups():
            with contextlib.suppress(OSError):
                group.mkdir(exist_ok=True)
                for name, value in limits:
                    (group / name).write_text(value)
        kept = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])}
        kept |= {str(self.workspace.root), str(self.workspace.cache)}
        kept.add(str((self.workspace.root / "labs").resolve().parent))  # of a checkout that is made of links
        namespaces = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
        process = subprocess.Popen(
            [*namespaces, sys.executable, "-I", "-c", HOLDER, *sorted(kept)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=keeper.die_with_parent,
            text=True,
        )
        assert process.stdout and process.stderr
        if process.stdout.readline() != "ready\n":
            why = process.stderr.read().strip().rpartition("\n")[2]
            process.kill()
            process.wait()
            raise LabError("a learner's own namespaces cannot be made here", why, "labctl hub up --trust-each-other")
        process.stderr.close()
        return process

    def _groups(self) -> list[tuple[Path, *tuple[tuple[str, str], ...]]]:
        """The control groups of a seat that is apart, version 2 or 1, each with its limits."""
        name, memory, tasks = f"labs-seat-{self.user}", str(self.memory_mib * 2**20), ("pids.max", str(MOST_TASKS))
        if (CGROUPS / "cgroup.controllers").exists():
            return [(CGROUPS / name, ("memory.max", memory), tasks, ("cpu.max", MOST_CPU))]
        kinds = {"memory": ("memory.limit_in_bytes", memory), "pids": tasks, "cpu": ("cpu.cfs_quota_us", MOST_CPU)}
        return [(CGROUPS / kind / name, limit) for kind, limit in kinds.items()]


def require_apart() -> None:
    """Raises LabError: seats cannot be kept apart, because this is not root or a tool is missing."""
    if os.geteuid():
        raise LabError(
            "keeping learners apart needs root",
            "without it all code runs as one user, and each learner's code can read and change what the others have",
            "run it as root, or labctl hub up --trust-each-other",
        )
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise LabError("keeping learners apart needs util-linux", f"not found: {', '.join(missing)}", "install it")
