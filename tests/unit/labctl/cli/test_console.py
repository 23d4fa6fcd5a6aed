"""What a long step says: on a line that changes, and where nobody sees a line change: in a log, in CI."""

from __future__ import annotations

import pytest

from labctl.cli import console
from labkit.errors import LabError


def test_without_a_terminal_a_long_step_shows_a_line_of_its_progress_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("labctl.cli.console.time.monotonic", lambda: now)
    listener = console.Console()
    listener.step("image labs-server")
    for second in range(12):
        now = 100.0 + second
        listener.progress(f"layer {second}")
    listener.done("built")
    assert capsys.readouterr().err.splitlines() == [
        "  ..  image labs-server",
        "      layer 0",
        "      layer 6",
        f"  ok  {'image labs-server':<{console.WIDTH}}  built  11.0 s",
    ]


def test_an_error_begins_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = console.Console()
    listener.live = True
    listener.step("iterative-gpt2, 8 in flight")
    listener.progress("3 of 32 answered")
    console.show_error(LabError("the connection to the server broke", code="connection-broken"))
    lines = capsys.readouterr().err.split("\n")
    assert any(line.startswith("error:") for line in lines)


def test_a_progress_line_never_wraps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listener = console.Console()
    listener.live = True
    listener.step("tritonserver with preprocessing, tensorrt_llm, postprocessing, ensemble")
    listener.progress("preprocessing ready, tensorrt_llm loading, postprocessing ready, ensemble loading")
    shown = capsys.readouterr().err.split("\r")[-1]
    assert "preprocessing ready" in shown
    assert len(shown) < 80
