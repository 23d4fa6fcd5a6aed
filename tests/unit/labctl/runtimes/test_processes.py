"""A command in the foreground ends with us, and so does what it has started."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from process_states import ended
from waiting import eventually

from labctl.listener import Silent
from labctl.runtimes import processes
from labctl.runtimes.processes import Command


def test_a_command_in_the_foreground_that_does_not_end_takes_along_what_it_started(tmp_path: Path) -> None:
    """As JupyterHub: its servers have groups of their own."""
    file = tmp_path / "pid"
    deaf = f"trap '' TERM; setsid sh -c 'echo $$ >{file}.new; mv {file}.new {file}; exec sleep 600' & wait; wait"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupt() -> None:
        eventually(file.exists)
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            processes.run_foreground(Command(["sh", "-c", deaf], grace=0.2), Silent())
        thread.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    started = int(file.read_text())
    eventually(lambda: ended(started))
