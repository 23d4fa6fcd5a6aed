"""``python -m labctl.runtimes.series MODULE...``: a lab's clients, one after another, each a process of its own.

Each line of stdin is a script and its arguments, as a shell would read them; the last is the context file. When the
script has ended, its exit status (negative: the signal that ended it) is in a file beside that. The end of stdin ends
all. To start Python and import the MODULEs is most of what a short client takes: here it is done once, and each client
is a fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import shlex
import signal
import sys
from pathlib import Path

from labkit import script
from labkit.disk import atomic_write

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def ended_of(context: Path) -> Path:
    """Where it is said how the client with that context ended."""
    return context.with_suffix(".ended")


def main() -> int:
    """0 when stdin has ended; in a fork, the client's exit status."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own threads would not survive a fork
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        arguments = shlex.split(line)
        client = os.fork()
        if client == 0:
            return _run(arguments)
        code = os.waitstatus_to_exitcode(os.waitpid(client, 0)[1])
        atomic_write(ended_of(Path(arguments[-1])), str(code))
    return 0


def _run(arguments: list[str]) -> int:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.argv[1:] = arguments
    return script.main()


if __name__ == "__main__":
    sys.exit(main())
