"""What a long step says where nobody sees a line change: in a log, in CI."""

from __future__ import annotations

import pytest

from labctl.cli import console


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
