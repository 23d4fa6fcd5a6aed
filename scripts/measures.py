"""The measures of the house: how much there is to read, and how far a command walks through it.

    python scripts/measures.py             # one line a measure
    python scripts/measures.py --walk      # also the files of the walk, and the moves between them

The walk is traced with ``sys.setprofile``: its moves are the calls whose function is in another file of ``src/labctl``
than that of the call before.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LABCTL = ROOT / "src" / "labctl"
COMMAND = ("up", "iterative", "--dry-run")
# Rooms of capabilities that came after the house was measured, each at most ROOM_LINES; the rest is the house.
ROOMS = {
    "vllm": ("runtimes/layers.py", "vllm.py"),
    "door": (
        "runtimes/door.py",
        "runtimes/environments.py",
        "stack/door.py",
        "deploy/door.py",
        "cli/openai.py",
        "labs/load_tools.py",
        "labs/tool.py",
        "labs/tool_bench.py",
        "replicas/signals.py",
    ),
    "predict": (
        "cli/predict.py",
        "labs/rerun.py",
        "labs/paced.py",
        "pages/live/whatif.py",
        "pages/live/page/whatif.js",
    ),
    "anywhere": (
        "architecture.py",
        "cli/new.py",
        "bundle/folder.py",
        "doctor/system.py",
        "pages/live/arrivals.py",
        "learn/scenario.py",
    ),
    "museum and arena": ("museum/*.py", "runtimes/bare.py", "labs/arena.py", "cli/reproduce.py", "cli/arena.py"),
    "disaggregation": ("pages/live/routes.py", "pages/live/page/routes.js", "deploy/gateway.py"),
    "mystery": ("mystery/*.py", "cli/mystery.py"),
    "hub": ("hub/*.py", "runtimes/seats.py", "cli/hub.py"),
}
ROOM_LINES, PAGE_WORDS = 1_500, 900
# Their pages, each at most PAGE_WORDS.
PAGES = (
    *(
        f"docs/guide/{name}.md"
        for name in (
            "vllm",
            "openai",
            "structured-output",
            "load-tools",
            "prediction",
            "museum",
            "arena",
            "disaggregation",
            "mystery",
            "anywhere",
            "hub",
        )
    ),
    "docs/guide/questions/*.md",  # these at most 200 each
    "docs/develop/figures.md",
    "labs/08*/README.md",
    "labs/09*/README.md",
)
IMPORT = "_call_with_frames_removed"  # importlib's own frame above whatever a module does when it is imported


def lines_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def longest_model() -> tuple[int, Path]:
    """The longest ``model.py`` that a lab serves: in ``model_repos``, or in a lab's own ``models``."""
    shipped = [*ROOT.glob("model_repos/**/model.py"), *ROOT.glob("labs/*/models/**/model.py")]
    return max((lines_of([path]), path.relative_to(ROOT)) for path in shipped)


def found(below: Path, patterns: Iterable[str]) -> set[Path]:
    return {path for pattern in patterns for path in below.glob(pattern)}


def house() -> Iterator[tuple[str, str]]:
    """Lines and files of ``src/labctl``: in all, of each later room, and without these."""
    sources = found(LABCTL, ["**/*.py"])
    yield "lines / files of src/labctl", _counted(sources)
    for name, patterns in ROOMS.items():
        room = found(LABCTL, patterns)
        sources -= room
        yield f"  of these {name} (at most {ROOM_LINES:,} lines)", _counted(room)
    yield "  without these rooms (at most 19,000 / 170)", _counted(sources)
    for package in sorted(LABCTL.parent.glob("lab*")):
        if package != LABCTL:
            yield f"lines / files of src/{package.name}", _counted(found(package, ["**/*.py"]))


def _counted(paths: Iterable[Path]) -> str:
    return f"{lines_of(paths):,} / {len(list(paths))}"


def texts() -> Iterator[tuple[str, str]]:
    """Words of the pages: in all, of each page of a later room, and without these."""
    pages = found(ROOT, ["README.md", "docs/**/*.md", "labs/*/README.md"])
    later = found(ROOT, PAGES)
    yield "words of README, docs and lab READMEs", f"{words_of(pages):,}"
    for page in sorted(later):
        yield f"  of these {page.relative_to(ROOT)} (at most {PAGE_WORDS})", f"{words_of([page]):,}"
    yield "  without these pages (at most 25,000)", f"{words_of(pages - later):,}"


class Walk:
    """The files of labctl that a block runs through, and its moves from one to the next; imports are left out."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.moves: collections.Counter[tuple[str, str]] = collections.Counter()
        self._names: dict[str, str] = {}
        self._last = ""

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _name(self, frame: FrameType) -> str:
        """A file below ``src/labctl``; "" for any other."""
        path = frame.f_code.co_filename
        if path not in self._names:
            inside = path.startswith(f"{LABCTL}{os.sep}")
            self._names[path] = str(Path(path).relative_to(LABCTL)) if inside else ""
        return self._names[path]

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not (name := self._name(frame)) or _imports(frame):
            return
        self.files.add(name)
        if self._last not in ("", name):
            self.moves[self._last, name] += 1
        self._last = name


def _imports(frame: FrameType | None) -> bool:
    """Whether a call is part of an import: a module's body, a class body or a decorator in it."""
    while frame:
        if frame.f_code.co_name == IMPORT:
            return True
        frame = frame.f_back
    return False


def walk() -> Walk:
    """``labctl up iterative --dry-run``, traced in this process, which has called nothing of labctl before."""
    from labctl.cli.main import main

    traced = Walk()
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), traced.traced():
        code = main([*COMMAND])
    if code:
        raise SystemExit(f"labctl {' '.join(COMMAND)} ended with {code}: {silence.getvalue()}")
    return traced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walk", action="store_true", help="Also print the files of the walk, and the moves.")
    arguments = parser.parse_args()
    lines, model = longest_model()
    traced = walk()
    for label, value in (
        *house(),
        (f"longest lesson model.py ({model})", f"{lines}"),
        (f"labctl {' '.join(COMMAND)}: files / moves", f"{len(traced.files)} / {traced.moves.total():,}"),
        ("modules directly in src/labserve", f"{len(list((ROOT / 'src/labserve').glob('[!_]*.py')))}"),
        *texts(),
    ):
        print(f"{label:<78}{value:>16}")
    if arguments.walk:
        for name in sorted(traced.files):
            print(f"  {name}")
        for (before, after), count in traced.moves.most_common():
            print(f"  {count:5}  {before} -> {after}")


if __name__ == "__main__":
    main()
