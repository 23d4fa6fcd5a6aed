"""Escape codes in prompts, ids, answers and file names (fault 49): shown as text in every terminal view."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Any

import click
import pytest
from click.testing import CliRunner

from labctl.cli import clock, console, learn_view, stacks
from labctl.cli import infer as infer_module
from labctl.cli.explain import compare_command
from labctl.runtimes.base import State
from labctl.runtimes.record import Endpoints, Record
from labctl.workspace import Workspace
from labkit.client.live import LiveView
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord
from labkit.tables import format_table
from labsched.printable import printable

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31m\r\x08\x9b1A\u202e\x7f"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
OWN_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def test_a_text_keeps_its_length_its_lines_and_every_letter() -> None:
    shown = printable(f"a\tb\nSeoul é 😀 {EVIL}\ud800")
    assert shown.startswith("a\tb\nSeoul é 😀 ␛]0;owned␇␛[2J␛[31m␍␈")
    assert len(shown) == len(f"a\tb\nSeoul é 😀 {EVIL}\ud800")
    assert not OBEYED.search(shown)


def error() -> str:
    return _said(lambda: console.show_error(LabError(EVIL, EVIL, EVIL, [EVIL], code="any")))


def progress() -> str:
    def tell() -> None:
        listener = console.Console(verbose=True)
        listener.step(EVIL)
        listener.progress(EVIL)
        listener.note(EVIL)
        listener.command([EVIL])
        listener.done(EVIL)

    return _said(tell)


def requests() -> str:
    stream = io.StringIO()
    record = RequestRecord(
        label="1", model="m", prompt=EVIL, parameters={}, start=1.0, responses=[(1.5, EVIL)], end=2.0
    )
    with LiveView(1, stream) as live:
        live.watch(record)
    return stream.getvalue()


def learning() -> str:
    view = learn_view.View("02a", "started", "", "Task", "Edit a.", "task.md", [f"not yet: {EVIL}", EVIL])
    return "\n".join(line.plain for line in learn_view.view_lines(view, 80, 24))


def _said(tell: Callable[[], None]) -> str:
    @click.command()
    def command() -> None:
        tell()

    return CliRunner().invoke(command, color=True).output


@pytest.mark.parametrize("view", [error, progress, requests, learning, lambda: format_table([(EVIL,)], ("a",))])
def test_fault_49_no_view_lets_a_stranger_drive_the_terminal(view: Callable[[], str]) -> None:
    shown = view()
    assert "owned" in shown or "␛" in shown
    assert not OBEYED.search(OWN_COLOUR.sub("", shown.replace("\x1b[2J", "obeyed\x07")))


STATUS: dict[str, Any] = {
    **{"stack": "s", "state": "degraded", "runtime": "local", "profile": "cpu", "triton": "2", "endpoints": {}},
    **{"balance": "", "effective": {}, "stuck": [EVIL], "ended": EVIL, "replicas": []},
    "models": [{"name": EVIL, "version": "1", "state": "UNAVAILABLE", "reason": EVIL}],
    "edited": [{"model": "m", "file": EVIL, "loaded": True}],
}
HELD = {"model": "m", "instance": "0", "ids": [EVIL], "waiting": [EVIL], "why": EVIL}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (infer_module.infer_command, ["s", "-m", "m", "-p", "x"]),
        (stacks.logs_command, ["s"]),
        (stacks.status_command, ["s"]),
        (clock.clock_command, ["s", "pause"]),
    ],
)
def test_fault_49_answers_logs_and_states_are_printed_as_text(
    command: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record("s", "l", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"))
    runtime = Space(logs=lambda *_: [EVIL])
    lab = Space(stacks={"s": Space(bench=Space(model="m"))}, short="s")
    session = Space(
        state=lambda _: (runtime, State(record, frozenset([1]))),
        remembered=lambda _: None,
        runtime=lambda _: runtime,
        catalog=Space(stack=lambda word: (lab, "s"), labs=[lab]),
        stacks_named=lambda _: ["s"],
        listener=None,
        workspace=Workspace(Path("none"), Path("none")),
    )
    stopped = Space(act=lambda *_: {}, until=0.0, limit=None, run_dir=Path("none"))
    for place, found in {
        "labctl.cli.options.open_session": session,
        "labctl.stack.stack.RunningStack.require_up": Space(runtime=runtime, record=record),
        "labctl.learn.server.resolve_stack": "s",
        "labctl.cli.infer.death_of_stack": None,
        "labctl.stack.faults.stack_explainer": str,
        "labctl.stack.faults.stack_files": str,
        "labctl.stack.faults.watch_for_stalls": contextlib.nullcontext(),
        "labctl.triton.conversation.generate": iter([EVIL]),
        "labctl.cli.stacks.status": STATUS,
        "labctl.pages.live.lines.clock_of": stopped,
        "labctl.pages.live.lines.held_steps": [HELD],
    }.items():
        monkeypatch.setattr(place, lambda *_, found=found, **__: found)
    done = CliRunner().invoke(command, words, color=True, catch_exceptions=False)
    assert "␛]0;owned␇" in done.output
    assert not OBEYED.search(OWN_COLOUR.sub("", done.output))


def test_fault_49_a_file_name_of_a_result_is_printed_as_text(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        folder = tmp_path / f"{name}\x1b[2J"
        folder.mkdir()
        document = {"schema_version": 2, "lab": "x", "settings": {}, "metrics": {"tps": 1.0}}
        (folder / "result.json").write_text(json.dumps(document))
        paths.append(str(folder))
    done = CliRunner().invoke(compare_command, paths, color=True)
    assert "a␛[2J" in done.output
    assert "\x1b" not in done.output
