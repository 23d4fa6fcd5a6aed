"""The Hub token on its way into a container: through a named pipe, so that no disk ever holds it.

Compose mounts the pipe as a secret and the builder reads it once. A file in its place would outlive a ``kill -9``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


def hub_token() -> str:
    """The person's token from wherever Hugging Face's own tools look for it; "" if there is none."""
    from huggingface_hub import get_token

    return get_token() or ""


@contextlib.contextmanager
def pipe(path: Path, text: str) -> Iterator[Path]:
    """A named pipe at ``path`` that gives ``text`` to its first reader; gone at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    writer = threading.Thread(target=path.write_text, args=(text,), daemon=True)
    writer.start()
    try:
        yield path
    finally:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # frees a writer whose reader never came
        writer.join()
        os.close(end)
        path.unlink(missing_ok=True)
