"""``labctl watch STACK --terminal``: the live view without a browser, with keys for the clock."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import click
from rich.text import Text

from labctl.cli import fullscreen
from labctl.cli.clock import SOON_S
from labctl.cli.console import is_terminal
from labctl.clock import texts
from labctl.clock.clock import Clock
from labctl.pages.live.lines import held_steps
from labctl.pages.live.routes import RouteTail
from labctl.pages.live.state import LiveState
from labctl.pages.live.tail import StepLogTail
from labctl.pages.live.terminal import STRIP, TerminalState
from labctl.pages.live.whatif import WhatIf
from labctl.runtimes.record import Record
from labkit.errors import LabError
from labsched.steplog import parse_any_line, parse_step_line
from labsched.vllm import reader

TICK_S = 0.1
FACTORS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
# Okabe and Ito's colours, which colour-blind people tell apart, as far as 256 colours have them.
PALETTE = (214, 75, 36, 227, 32, 166, 175, 250)


class WatchScreen:
    """Reads the log as it grows, draws, listens to keys; steps are taken in a thread, so that keys are always heard."""

    def __init__(self, clock: Clock, record: Record, what_if: WhatIf | None = None) -> None:
        self._clock, self._endpoint = clock, record.endpoints.metrics
        self._tail = StepLogTail(clock.run_dir, parse_any_line if what_if else parse_step_line)
        self._state = LiveState()
        self._what_if, self._routes = what_if, RouteTail(clock.run_dir)
        self._screen = TerminalState(record.stack)
        self._stepping: threading.Thread | None = None
        self._factor = 0  # its place in FACTORS

    def run(self) -> None:
        """Until q or Ctrl-C. Raises LabError where this is no terminal."""
        if not is_terminal():
            raise LabError(
                "this is no terminal",
                "keys are read and lines drawn in place",
                "labctl watch STACK",
                code="terminal-needed",
            )
        renewed = float("-inf")
        with fullscreen.fullscreen() as draw:
            while (key := fullscreen.read_key(TICK_S)) != "q":
                if time.monotonic() - renewed > texts.RENEW_S:
                    renewed = time.monotonic()
                    texts.ask_for_texts(self._clock.run_dir)
                self._look_at_the_log()
                self._look_at_the_clock()
                self._act(key)
                self._screen.now = time.monotonic()
                draw(lambda *size: [_colour_strip(line) for line in self._screen.lines(self._state, *size)])
        if self._clock.paused:
            click.echo(f"its clock still stands still: labctl clock {self._screen.title} run", err=True)

    def _look_at_the_log(self) -> None:
        lines = self._tail.read()
        self._state.feed(line for line in lines if "ids" in line)
        if self._what_if:
            self._what_if.feed(lines)
            self._screen.what_if = self._what_if.words
        self._routes.read()
        self._screen.routes = next((f"router: {route['sum']}" for route in reversed(self._routes.recent)), "")

    def _look_at_the_clock(self) -> None:
        held = {(state["model"], state["instance"]): state for state in held_steps(self._clock)}
        for view in (*self._state.models.values(), *(self._state.of(*key) for key in held)):
            view.mode, view.held = self._clock.mode(view.model)["mode"], held.get((view.model, view.instance))
        until = self._clock.until
        left = until - time.monotonic() if until else math.inf
        self._screen.warning = f"it goes on by itself in {left:.0f} s" if left < SOON_S else ""

    def _act(self, key: str) -> None:
        model, which = self._screen.chosen, self._screen.chosen or "all models"
        paused = model in self._clock.paused if model else bool(self._clock.paused)
        match key:
            case "p" | " " if not paused:
                self._do("pause", f"{which}: paused")
            case "s" | "t" if not (self._stepping and self._stepping.is_alive()):
                count = 1 if key == "s" else 10
                self._stepping = threading.Thread(target=self._step, args=(count, model), name="step", daemon=True)
                self._stepping.start()
            case "p" | " " | "r" | "+" | "-":
                places = {"+": self._factor + 1, "-": self._factor - 1, "r": 0}
                self._factor = max(0, min(len(FACTORS) - 1, places.get(key, self._factor)))
                factor = FACTORS[self._factor] if key in "+-" else 1.0
                if factor == 1.0:
                    self._do("run", f"{which}: running")
                else:
                    self._do("slow", f"{which}: {factor:g} times as slow", factor)
            case "m":
                choices = ["", *dict.fromkeys(view.model for view in self._state.models.values())]
                self._screen.chosen = choices[(choices.index(model) + 1) % len(choices)] if model in choices else ""

    def _do(self, action: str, note: str, factor: float = 1.0) -> None:
        try:
            self._clock.act(action, factor, self._screen.chosen)
            self._screen.note = note
        except LabError as error:
            self._screen.note = f"{error.what}: {error.why}"

    def _step(self, count: int, model: str) -> None:
        try:
            done = self._clock.step(count, model, self._endpoint)
            counts = ", ".join(f"{name} {steps}" for name, steps in done.items())
            self._screen.note = f"stepped: {counts}" if done else "nothing waited for a step"
        except LabError as error:
            self._screen.note = error.what


class RecordingScreen:
    """The same for a recording that somebody's own vLLM writes: it is only looked at."""

    def __init__(self, folder: Path) -> None:
        self._tail, self._state = reader.RecordingTail(folder), LiveState()
        self._screen = TerminalState(str(folder), "q\xa0quit")

    def run(self) -> None:
        """Until q or Ctrl-C. Raises LabError where this is no terminal, or the recording is damaged."""
        if not is_terminal():
            raise LabError(
                "this is no terminal", "lines are drawn in place", "labctl watch FOLDER", code="terminal-needed"
            )
        with fullscreen.fullscreen() as draw:
            while fullscreen.read_key(TICK_S) != "q":
                self._state.feed(self._tail.read())
                draw(lambda *size: [_colour_strip(line) for line in self._screen.lines(self._state, *size)])


def _colour_strip(line: str) -> Text:
    """A line of the screen; of a slot's, each letter of the strip has its request's colour."""
    text = Text(line)
    if line[:3].strip().isdigit():
        strip, _, _ = line[STRIP:].partition("  ")
        for column, letter in enumerate(strip.lower(), STRIP):
            if letter.isalpha():
                text.stylize(f"color({PALETTE[(ord(letter) - ord('a')) % len(PALETTE)]})", column, column + 1)
    return text
