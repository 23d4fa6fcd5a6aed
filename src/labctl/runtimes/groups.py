"""The processes of a stack on the local runtime: each part (a server, Envoy, the OpenAI API) is a process group.

The stack's state file names the group, the start of its leader and the boot of the machine, so that a number which the
kernel has given to another process since is never taken for ours. A part works below the stack's folder: what a copy of
the checkout finds in its own is not the copy's. What a killed server leaves (Triton's stubs, which wait for it for
ever) is in its group still: the stack's next ``up`` or ``down`` ends it. A command that starts a part has the stack's
lock.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from labctl.runtimes import record
from labctl.runtimes.processes import IF_PARENT_LIVES, describe_exit
from labctl.runtimes.record import Proc
from labctl.workspace import StackFolder
from labkit import disk

ENVOY, OPENAI = "envoy", "openai"
TRITON = "tritonserver"
ENDED_S = 10.0  # for all of them together; a process that cannot be killed must not keep a command for longer
LOOK_S = 0.01
BOOT = Path("/proc/sys/kernel/random/boot_id")
# The shell writes down how the server ended, and then ends its stubs. It survives the signals that end the server.
KEEP = 'trap : TERM INT HUP; ended=$1; shift; {server}; echo $? >"$ended.new"; mv "$ended.new" "$ended"; kill -KILL 0'
# What follows begins when the state file names it: a command that is killed before leaves nothing that is not named.
NAMED = 'read -r named && exec "$@" </dev/null'
# The kernel ends what follows with its parent, whose number comes first.
TIED = f"setpriv --pdeathsig KILL sh -c '{IF_PARENT_LIVES} \"$@\"'"


def server_part(number: int | None) -> str:
    """Name the group of a server: of a replica by its number."""
    return f"server-{number}" if number else "server"


@dataclass(frozen=True)
class ProcessGroup:
    """One part of a stack, by the process that leads its group."""

    part: str
    leader: Proc
    boot: str
    folder: Path

    @property
    def number(self) -> int | None:
        """The replica that it is; None for a stack's only server, and for another part."""
        name, _, number = self.part.partition("-")
        return int(number) if name == "server" and number else None

    def server(self) -> psutil.Process | None:
        """Return its tritonserver; None where it has ended, or the group is no server's."""
        if self.part.startswith("server"):
            for process in self.members():
                with contextlib.suppress(psutil.Error):  # it has just ended
                    if process.name() == TRITON:
                        return process
        return None

    def members(self) -> list[psutil.Process]:
        """Return its living processes, the leader first."""
        if self.boot != _boot() or self.leader.replaced():
            return []  # the kernel gives a number away when nothing is left of its group
        found: list[psutil.Process] = []
        elsewhere: list[bool] = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):  # it has just ended
                if os.getpgid(pid) == self.leader.pid and is_alive(process := psutil.Process(pid)):
                    found.append(process)
                    # One that is being killed holds ports still, and nobody is told where it worked.
                    elsewhere.append(not Path(process.cwd()).is_relative_to(self.folder))
        if elsewhere and all(elsewhere):
            return []
        return sorted(found, key=lambda process: process.pid != self.leader.pid)


def groups(folder: StackFolder) -> list[ProcessGroup]:
    """Return the parts of a stack that were started and not taken down, whether anything of them lives or not."""
    found = []
    for part, place in record.read_state(folder.state_file)[record.GROUPS].items():
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            leader = Proc(int(place["pid"]), float(place["started"]))
            found.append(ProcessGroup(str(part), leader, str(place["boot"]), folder.path))
    return found


def model_processes(folder: StackFolder) -> list[psutil.Process]:
    """Return the processes that a stack's servers have started: each runs the Python of a model."""
    found = []
    for group in groups(folder):
        if server := group.server():
            for process in group.members():
                with contextlib.suppress(psutil.Error):  # it has just ended
                    if process.ppid() == server.pid:
                        found.append(process)
    return found


def spawn(
    folder: StackFolder,
    part: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    cwd: Path,
    outlive: bool,
    ended: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a part in a group of its own, its output appended to ``log``; what it writes is its owner's alone.

    Args:
        cwd: the stack's folder, or one below it.
        outlive: else the kernel ends it with the thread that calls this.
        ended: the file that says how it ended.
    """
    words = list(argv)
    if ended:
        words = ["sh", "-c", KEEP.format(server='"$@"' if outlive else f'{TIED} $$ "$@"'), "sh", str(ended), *words]
    if not outlive:
        words = [*shlex.split(TIED), str(os.getpid()), *words]
    with log.open("ab") as stream:
        process = subprocess.Popen(
            ["sh", "-c", NAMED, "sh", *words],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )
    assert process.stdin
    with contextlib.suppress(BrokenPipeError), process.stdin as begin:
        record.name_group(folder.state_file, part, {**asdict(Proc.of(process.pid)), "boot": _boot()})
        begin.write(b"\n")
    return process


def end(parts: Sequence[ProcessGroup]) -> None:
    """Kill the living processes of these parts, and wait until they are gone."""
    deadline = time.monotonic() + ENDED_S
    for group in parts:
        while (living := group.members()) and time.monotonic() < deadline:
            send_signal(living, signal.SIGKILL)  # again: a server may have started a stub meanwhile
            time.sleep(LOOK_S)  # who started it reaps it, and sees how it ended


def how_it_ended(path: Path) -> str | None:
    """Say how a server ended, by the exit status that a shell left in a file; None where it left none."""
    try:
        code = int(disk.read_text(path))
    except (OSError, ValueError):
        return None
    return describe_exit(128 - code if code > 128 else code)  # 128 and the number of a signal


def send_signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def is_alive(process: psutil.Process) -> bool:
    """Whether it may still do anything: a process that waits to be reaped holds neither memory nor ports."""
    try:
        # In a process that is killed, the first thread may end before the others, which still hold memory and ports.
        return bool(process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def _boot() -> str:
    """Name this boot of the machine: pids and the times of their starts count from it."""
    with contextlib.suppress(OSError):
        return BOOT.read_text(encoding="ascii").strip()
    return ""
