"""What went wrong in a learner's file, as one sentence: the file and the line first, then the exception."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.learn import overlay, server
from labctl.learn.exercise import Exercise
from labctl.stack.faults import stack_explainer
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labkit import disk
from labkit.evidence.steplog import run_folders
from labsched.log.files import json_object, open_to_read

MOST_LINES = 10
FRAME = re.compile(r"\s+\S+\(\d+\): ")  # a line below Triton's "At:"
WHOSE = re.compile(r"Failed to process the request\(s\) for model '[^']*', message: ")
KIND = re.compile(r"^(Internal|Invalid argument|Unavailable): ")


@dataclass(frozen=True)
class ObservedFault:
    """What the observer (``labserve.observe.exercise``) noted: an exception and its ``line``, or a broken rule."""

    at: float
    words: str
    line: int | None
    exception: bool = True


def read_faults(run_dir: Path, since: float) -> list[ObservedFault]:
    """The faults that the models of a run folder noted since ``since`` (``time.monotonic()``), oldest first."""
    found = []
    paths = [path for folder in run_folders(run_dir) for path in folder.glob("faults-*.jsonl")]
    for path in paths:
        try:
            with open_to_read(path) as stream:
                lines = stream.read(disk.MOST_JSON).splitlines()
        except OSError:  # not a line of the observer's
            continue
        for line in lines:
            try:
                data = json_object(line)
                fault = ObservedFault(float(data["t"]), str(data["words"]), data["line"], bool(data["exception"]))
            except (ValueError, KeyError, TypeError):  # cut off when its process was killed
                continue
            if fault.at >= since:
                found.append(fault)
    return sorted(found, key=lambda fault: fault.at)


def headline(faults: Sequence[ObservedFault], exercise: Exercise) -> str:
    """The first exception of them, with the learner's file and line; the first broken rule where there is none."""
    first = next((fault for fault in faults if fault.exception), faults[0] if faults else None)
    if first is None:
        return ""
    if not first.exception:
        return f"{first.words}."
    line = f", line {first.line}" if first.line else ""
    return f"{_model_file(exercise)}{line}: {first.words}"


def locate_line(text: str, exercise: Exercise) -> str:
    """What Triton or a process of the learner's said, as file, line and exception; "" where it names no such line."""
    for name in exercise.manifest.files:
        if match := re.search(rf"(?<![\w/.]){re.escape(name)}, line (\d+): (.+)", text):  # as our own code says it
            return f"{exercise.place(name)}, line {match[1]}: {match[2].strip()}"
        own = re.escape(exercise.place(name))
        if match := re.search(rf"^(.*?)\s*\bAt:\s.*?{own}\((\d+)\): ", text, re.DOTALL):  # as Triton does
            words = KIND.sub("", " ".join(match[1].split()))
            return f"{exercise.place(name)}, line {match[2]}: {words}"
    return ""


def in_learners_files(text: str, session: Session, exercise: Exercise, running: RunningStack | None) -> str:
    """The text with the served copy's paths as ``exercises/ID/...``; of a stack only the learner's own lines."""
    names = overlay.served_files(exercise)
    if running is not None:
        text = stack_explainer(running, names)(text)
    for path, name in overlay.names_by_path(exercise, session.workspace).items():
        text = text.replace(f"{session.workspace.root}/{path}", name).replace(path, name)
    if running is None:  # a server that is gone named them by their paths in its repository
        text = text.replace(f"{session.workspace.folder(server.STACK).repository}/", "")
    for place, name in names.items():  # what cannot be rendered is named by its place in the repository
        text = re.sub(rf"(?<![\w/.-]){re.escape(place)}", name, text)
    lines = WHOSE.sub("", text.strip()).splitlines()
    if own := [line for line in lines if FRAME.match(line) and any(name in line for name in names.values())]:
        lines = [line for line in lines if line in own or not FRAME.match(line)]
    return "\n".join(line for line in lines[:MOST_LINES] if line.strip())


def _model_file(exercise: Exercise) -> str:
    """The file of the learner's that an observer stands around."""
    files = overlay.served_files(exercise)
    return next((name for place, name in files.items() if place.endswith(f"/{overlay.LEARNERS}")), "the model")
