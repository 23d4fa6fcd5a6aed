"""What a viewer shows, from the lines of the log: who sits, who waits, what each has got; and the terminal's screen."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from step_logs import Line, step

from labctl.cli.watch_screen import WatchScreen
from labctl.clock.clock import Clock
from labctl.pages.live.state import ENDED, LiveState
from labctl.pages.live.terminal import STRIP, TerminalState
from labctl.runtimes.record import Endpoints, Record
from labsched.steplog import StepLog

SECONDS = 30.0


def fed(*lines: Line) -> LiveState:
    state = LiveState()
    state.feed(lines)
    return state


def test_whoever_comes_late_sees_from_one_line_who_sits_and_who_waits() -> None:
    seated = {"seats": ["7", "", "9"], "rows": [0, 2], "slots": 3}
    waits = {"waiting": ["10"], "queue": 1, "why": "no slot"}
    memory = {"blocks": [3, 2], "kv_blocks": 8, "kv_blocks_used": 5}
    last = step(90, ["7", "9"], **seated, **waits, **memory, before={"7": "Once upon"}, texts=[" a", "x"])
    view = fed(last).of("m", "0_0")
    assert (view.seats, view.batch) == (["7", "", "9"], ["7", "9"])
    assert (view.waiting, view.why, view.queue) == (["10"], "no slot", 1)
    assert (view.blocks, view.kv_blocks, view.kv_blocks_used) == ({"7": 3, "9": 2}, 8, 5)
    assert view.requests["7"].text == "Once upon a"
    assert "10" in view.requests


def test_what_is_idle_has_no_blocks_in_use_and_makes_no_tokens() -> None:
    busy = step(1, ["7"], seats=["7"], slots=1, blocks=[3], kv_blocks=8, kv_blocks_used=3)
    last = step(2, ["7"], seats=[""], slots=1, blocks=[3], kv_blocks=8, kv_blocks_used=3, ended={"7": "length"})
    assert fed(busy).of("m", "0_0").kv_blocks_used == 3
    state = fed(busy, last)
    assert state.of("m", "0_0").kv_blocks_used == 0
    head = next(text for text in TerminalState("a stack").lines(state, 80, 24) if text.startswith("m "))
    assert "idle" in head and "tokens/s" not in head
    assert "tokens/s" in "".join(TerminalState("a stack").lines(fed(busy), 80, 24))


def test_a_request_is_followed_from_its_wait_to_its_end() -> None:
    state = fed(
        step(1, ["7"], waiting=["8"], queue=1, why="no slot", prompts={"7": "The"}, texts=[" fox"]),
        step(2, ["7"], waiting=["8"], queue=1, why="no slot", ended={"7": "length"}, texts=[" ran"]),
        step(3, ["8"], joined=["8"], phase="p", made=[0]),
        step(4, ["8"], ended={"8": "stop"}),
    )
    seven, eight = (state.of("m", "0_0").requests[name] for name in "78")
    assert (seven.prompt, seven.text, seven.tokens, seven.ended) == ("The", " fox ran", 2, "length")
    assert (eight.tokens, eight.ended) == (1, "stop")


def test_a_client_that_left_without_a_step_is_gone_and_a_name_can_come_again() -> None:
    gone = step(2, [], kind="change", ended={"7": "cancelled"}, seats=[""])
    state = fed(step(1, ["7"]), gone)
    view = state.of("m", "0_0")
    assert (view.requests["7"].ended, view.seats, len(view.steps)) == ("cancelled", [""], 1)
    state.feed([step(3, ["7"])])
    assert (view.requests["7"].ended, view.requests["7"].tokens) == (None, 1)


def test_rates_are_those_of_the_last_moments() -> None:
    lines = [step(n, ["7", "8"]) | {"t": 10 + n / 100, "dur": 0.01} for n in range(1, 501)]
    assert fed(*lines).of("m", "0_0").rates() == pytest.approx((100.0, 200.0), rel=0.01)


def test_what_is_kept_is_bounded() -> None:
    state = fed(*(step(n, [str(n)], ended={str(n): "length"}) for n in range(1, 2000)))
    assert len(state.of("m", "0_0").requests) == ENDED


def shown(state: LiveState, width: int = 80, height: int = 24) -> list[str]:
    lines = TerminalState("iterative").lines(state, width, height)
    assert len(lines) == height and all(len(one) <= width for one in lines)
    return lines


def test_the_screen_shows_prefill_decode_and_an_empty_seat_apart_without_colour() -> None:
    state = fed(
        step(1, ["7"], phase="p", slots=2, seats=["7", ""]),
        step(2, ["7"], slots=2, seats=["7", ""], texts=[" fox"], prompts={"7": "The"}),
        step(3, ["7", "9"], phase="dp", slots=2, seats=["7", "9"], waiting=["10"], queue=1, why="no slot"),
    )
    state.of("m", "0_0").held = {"ids": ["7", "9"], "waiting": ["10"], "why": "no slot"}
    screen = shown(state)
    seats = [one for one in screen if one[:3].strip().isdigit()]
    assert [one[STRIP : STRIP + 3] for one in seats] == ["Aaa", "..B"]
    assert seats[0].endswith("fox")
    text = "\n".join(screen)
    assert "waiting 1 (no slot): C" in text
    assert "the step that waits: A B; not in it (no slot): C" in text


def test_the_screen_fits_however_many_seats_and_models_there_are() -> None:
    names = [f"request-{n}" for n in range(64)]
    seats = {"slots": 64, "seats": names, "texts": ["long text " * 50] * 64}
    memory = {"blocks": [9] * 64, "kv_blocks": 600, "kv_blocks_used": 576}
    waits = {"waiting": names, "queue": 900, "why": "no KV block"}
    many = [step(n, names, **seats, **memory, **waits) for n in range(1, 300)]
    state = fed(*many, *({**one, "model": "other"} for one in many))
    for size in ((80, 24), (200, 60), (40, 10)):
        assert any("more slots" in one for one in shown(state, *size)) or size[1] < 24


def test_a_model_with_one_seat_takes_a_line_where_another_has_several() -> None:
    several = step(1, ["7", "8"], slots=4, seats=["7", "8", "", ""])
    single = {name: value for name, value in step(1, ["9"]).items() if name != "rows"} | {"model": "single"}
    screen = shown(fed(several, single))
    assert [one[STRIP] for one in screen if one[:3].strip().isdigit()] == ["a", "b", ".", "."]
    assert sum(one.startswith("single") for one in screen) == 1


STACK = """
import sys
from pathlib import Path
from labctl.cli.watch_screen import WatchScreen
from labctl.clock.clock import Clock, PauseLimit
from labctl.runtimes.record import Endpoints, Record
record = Record("s", "l", "local", "cpu", {}, ["m"], Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))
WatchScreen(Clock(Path(sys.argv[1]), ("m",), PauseLimit(76.0, "forgets")), record).run()
"""


def test_a_pause_that_ends_while_the_terminal_looks_at_it_is_no_failure(tmp_path: Path) -> None:
    class Ending(Clock):
        """A clock whose pause ends as soon as it has been looked at."""

        looks = iter([time.monotonic() + 1.0])

        @property
        def until(self) -> float | None:
            return next(self.looks, None)

    endpoints = Endpoints("h:1", "h:2", "h:3")
    screen = WatchScreen(Ending(tmp_path, ("m",)), Record("s", "l", "local", "cpu", {}, ["m"], endpoints))
    screen._look_at_the_clock()
    assert "goes on by itself" in screen._screen.warning


def test_the_keys_of_the_terminal_move_the_clock(tmp_path: Path) -> None:
    log = StepLog(str(tmp_path), "m", "0_0")
    log.write(time.monotonic(), ["7"], rows=[0], phase="p", made=[1], slots=2, seats=["7", ""])
    log.close()
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", STACK, str(tmp_path)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(terminal)
    clock, said = Clock(tmp_path, ("m",)), b""
    try:

        def until(condition: Callable[[], bool]) -> None:
            nonlocal said
            deadline = time.monotonic() + SECONDS
            while not condition():
                assert time.monotonic() < deadline, said.decode(errors="replace")
                said += os.read(screen, 4096)

        until(lambda: b"m  run  slots 1 of 2" in said)
        os.write(screen, b"p")
        until(lambda: clock.paused == ["m"])
        until(lambda: b"it goes on by itself in " in said)
        for key in (b"p", b" "):
            os.write(screen, key)
            until(lambda: clock.modes() == {})
            os.write(screen, b"p")
            until(lambda: clock.paused == ["m"])
        os.write(screen, b"s")
        until(lambda: b"nothing waited for a step" in said)
        os.write(screen, b"r")
        until(lambda: clock.modes() == {})
        os.write(screen, b"+")
        until(lambda: clock.mode("m").get("factor") == 2.0)
        os.write(screen, b"q")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    assert (tmp_path / "watched").exists(), "texts are asked for while somebody watches"
