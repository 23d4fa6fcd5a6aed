"""The command lines of ``docker`` and ``docker compose``: python-on-whales writes them, and ``processes`` runs them.

python-on-whales would run them itself: without an end to them where labctl is killed, without its lines as they come,
and for Compose without a stdin. So the two functions by which it starts processes are replaced during a call, and hand
out the words instead.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from python_on_whales import DockerClient  # takes a third of a second: it is imported where a command is written

Call = Callable[["DockerClient"], object]
INSPECTED = "[{}]"  # an answer to `docker image inspect`
SEAMS = ("run", "stream_stdout_and_stderr")
_replacing = threading.Lock()


class _Written(BaseException):
    """Leaves a call of python-on-whales with its command line: none of its own handlers catches this."""

    def __init__(self, words: Sequence[Any]) -> None:
        self.words = [str(word) for word in words]


def docker_argv(
    call: Call, files: Sequence[str | Path] = (), *, project: str = "", env_file: Path | None = None
) -> list[str]:
    """The command line of a call of python-on-whales, from "docker" on; nothing is run, and no docker need be here.

    Args:
        files, project: of Compose; ``env_file`` names both.
    """
    from python_on_whales import DockerClient

    env_files: list[str | Path] = [env_file] if env_file else []
    client = DockerClient(compose_files=list(files), compose_project_name=project or None, compose_env_files=env_files)
    client.client_config._client_call_with_path = ["docker"]  # it would look for the program
    try:
        with _written_only():
            call(client)
    except _Written as written:
        return written.words
    raise AssertionError("python-on-whales has another function that starts processes")


@contextlib.contextmanager
def _written_only() -> Iterator[None]:
    """For the time of a block python-on-whales writes command lines and runs none."""
    from python_on_whales import utils

    def write(args: Sequence[Any], *_: object, **__: object) -> str:
        if "inspect" in args[:3]:
            return INSPECTED  # some calls look first whether an image is there; the command itself will tell
        raise _Written(args)

    with _replacing:
        modules = [module for name, module in sys.modules.items() if name.startswith("python_on_whales.")]
        originals = [
            (module, seam, getattr(utils, seam))
            for module in modules
            for seam in SEAMS
            if getattr(module, seam, None) is getattr(utils, seam)
        ]
        try:
            for module, seam, _ in originals:
                setattr(module, seam, write)
            yield
        finally:
            for module, seam, original in originals:
                setattr(module, seam, original)
