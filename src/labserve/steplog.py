"""The step log: one JSON line per execution, from which timelines of the scheduler are drawn."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO


class StepLog:
    """Appends to `<run_dir>/steps-<model>-<instance>.jsonl`.

    `run_dir` is the stack's writable run folder. Where it is empty or cannot be written, nothing is logged
    and nothing fails: a server must not stop serving because nobody can watch it.
    """

    def __init__(self, run_dir: str, model: str, instance: str) -> None:
        self._head = {"model": model, "instance": instance}
        self._file: TextIO | None = None
        if run_dir:
            try:
                # Line buffering: a step's line is whole in the file as soon as the step is over.
                path = Path(run_dir) / f"steps-{model}-{instance}.jsonl"
                self._file = path.open("a", buffering=1, encoding="utf-8")
            except OSError:
                pass

    def write(self, started: float, ids: Sequence[object], kind: str = "step", **counts: int | Sequence[int]) -> None:
        """Log an execution that began at `started` (time.monotonic() seconds) and ends now.

        `ids` are the correlation or request ids of its rows, in order; `counts` are any further whole numbers
        (slots used, newcomers, queue length, ...), or one of them per row.
        """
        if self._file is None:
            return
        end = time.monotonic()
        line = {
            "t": round(end, 6),
            "dur": round(end - started, 6),
            **self._head,
            "kind": kind,
            "batch": len(ids),
            "ids": [str(i) for i in ids],
            **counts,
        }
        try:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError:  # the disk is full, or the folder is gone
            self._file = None

    def close(self) -> None:
        """Close the file; later writes do nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
