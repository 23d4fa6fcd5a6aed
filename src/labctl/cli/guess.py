"""A number is guessed before it is measured: by a person before ``labctl run``, by a class with ``labctl guess``."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from labctl.cli.console import say
from labctl.lab import Guess
from labkit.tables import format_table

SEEDS = 10_000
SLOTS, NAMES = 3, "ABCDEF"
PREFILL, DECODE, WAITS = "P", "=", "."


def ask_guess(guess: Guess) -> float | None:
    """A person's answer; None for none."""
    say("\nGuess first. (Enter: no guess. Never asked: --no-guess)")
    say(guess.question, hanging="")
    return ask_number(f"your guess, in {guess.unit}")


def ask_number(words: str) -> float | None:
    """A number that is typed; None for an empty line."""
    while True:
        text = click.prompt(words, default="", show_default=False).strip().removesuffix("%").replace(",", "")
        try:
            return float(text) if text else None
        except ValueError:
            click.echo(f"{text}: a number, please, or Enter")


def show_guess(guess: Guess, guessed: float, flat: Mapping[str, Any]) -> float | None:
    """Show the guess beside what was measured, which is returned."""
    measured = guess.measured(flat)
    row = (guess.question, guess.in_words(guessed), guess.in_words(measured))
    click.echo(f"\n{format_table([row], ('guess first', 'your guess', 'measured'))}")
    return measured


@dataclass(frozen=True)
class DrawnRequest:
    """A request of a drawn load: it arrives before a step, and its answer has that many tokens."""

    name: str
    arrives: int
    answer: int


@click.command("guess")
@click.argument("seed", required=False, type=click.IntRange(min=0), metavar="[N]")
def guess_command(seed: int | None) -> None:
    """Draw a load, and ask how many steps it takes under static and under in-flight batching.

    For a class with a projector: collect the guesses aloud, then press Enter for the schedule. N draws the same load
    again.
    """
    seed = random.randrange(SEEDS) if seed is None else seed
    load = draw_load(random.Random(seed))
    say(f"Load {seed} (the same again: labctl guess {seed}). A server has {SLOTS} slots.")
    say("In its first step a request's prompt and its first token are computed, in each later one a token.\n")
    rows = [(request.name, request.arrives, request.answer) for request in load]
    click.echo(format_table(rows, ("request", "comes before step", "tokens of its answer"), right=(1, 2)))
    results = []
    for static, name in ((True, "static batching"), (False, "in-flight batching")):
        click.echo()
        guessed = ask_number(f"How many steps with {name}")
        strip = strips(load, static)
        steps = max(map(len, strip.values()))
        click.echo(f"\n{name}: {steps} steps  ({PREFILL} prompt, {DECODE} token, {WAITS} waits)\n")
        click.echo("   " + "".join(str(n % 10) for n in range(1, steps + 1)))
        for request, marks in strip.items():
            click.echo(f"{request}  {marks}")
        results.append((name, "-" if guessed is None else f"{guessed:g}", steps))
    click.echo(f"\n{format_table(results, ('steps with', 'guess', 'it takes'), right=(1, 2))}")


def draw_load(rng: random.Random) -> list[DrawnRequest]:
    """Requests for which the two ways of batching differ by at least three steps."""
    while True:
        late = rng.randint(2, 4)
        load = [DrawnRequest(name, late if name > "D" else 1, rng.randint(2, 12)) for name in NAMES]
        static, inflight = (max(map(len, strips(load, static).values())) for static in (True, False))
        if static - inflight >= 3 and static <= 40:
            return load


def strips(load: Sequence[DrawnRequest], static: bool) -> dict[str, str]:
    """What each request does in each step until its answer is whole, as the labs' own scheduler decides it."""
    from labsched import CountingEngine, KVBudget, Policy, Request, Scheduler

    engine = CountingEngine(step_tokens=1000)
    scheduler = engine.scheduler = Scheduler(engine, KVBudget(1000, 4), Policy.GUARANTEED_NO_EVICT, SLOTS, static)
    marks, left, number = {request.name: "" for request in load}, {request.name for request in load}, 0
    while left:
        number += 1
        for request in load:
            if request.arrives == number:
                scheduler.submit(Request(request.name, [0, 0], request.answer))
        step = scheduler.step()
        phases = dict(zip(step.ids, step.phase, strict=True))
        for request in load:
            if request.name in phases:
                marks[request.name] += PREFILL if phases[request.name] == "p" else DECODE
            elif request.name in left:
                marks[request.name] += WAITS if request.arrives <= number else " "
        left -= {request.name for request in step.finished}
    return marks
