"""The class view: where each learner is, and what most stumble over; and *Guess* for all. JupyterHub shows both
(class_service.py).
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

from labctl.learn.exercise import Exercise
from labctl.learn.group import SIGN
from labctl.learn.guess import POLICIES, PREEMPTED, WAITS, Cell, Guessing, Question
from labctl.learn.progress import NEW, PASSED, Entry
from labctl.learn.standing import ClassStanding, commonest

AGAIN_S, SOON_S = 10, 3
STEPS = 8  # that a question shows
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{again}<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #1a1a1a; background: #fff }}
table {{ border-collapse: collapse; margin: 0 0 2em }}
caption {{ text-align: left; font-weight: 600; padding: .3em .6em }}
td, th {{ padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: left; font-variant-numeric: tabular-nums }}
.prefill {{ background: #cfe3ff }} .decode {{ background: #e3f3d5 }} .waits {{ color: #666 }}
.preempted {{ color: #a11 }}
.asked {{ border-left: 2px solid #1a1a1a }} button {{ font: inherit; padding: .2em .8em }}
</style></head><body><h1>{title}</h1>{body}</body></html>"""


def _page(title: str, body: str, again_s: int = 0) -> str:
    """A page that a browser loads again after ``again_s`` seconds; 0: never."""
    again = f'<meta http-equiv="refresh" content="{again_s}">' if again_s else ""
    return PAGE.format(title=title, again=again, body=body)


def _table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every text is escaped."""

    def line(cell: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead>{line('th', header)}</thead>{body}</table>"


def page(
    learners: Sequence[ClassStanding], exercises: Sequence[Exercise], now: float, guessing: Guessing, token: str
) -> str:
    """The whole page; ``now`` is seconds since the epoch, ``token`` what a form proves with that the page is ours."""
    titles = {exercise.id: exercise.title for exercise in exercises}
    begun = [id for id in titles if any(id in learner.entries for learner in learners)]

    def learner_row(learner: ClassStanding) -> list[str]:
        current = learner.current
        entry = learner.entries.get(current, Entry())
        at = f"{current}  {titles[current]}" if current else "nothing yet"
        since = f"{int(now - entry.started) // 60} min" if entry.started else ""
        counts = [str(entry.checks), str(entry.hints)] if current else ["", ""]
        signs = [SIGN[learner.entries[id].state] if id in learner.entries else SIGN[NEW] for id in begun]
        return [learner.name, at, since, *counts, learner.mistakes.get(current, ""), *signs, str(learner.passed)]

    def exercise_row(id: str) -> list[str]:
        at = sum(learner.current == id for learner in learners)
        entries = [learner.entries[id] for learner in learners if id in learner.entries]
        passed = sum(entry.state == PASSED for entry in entries)
        checks = sum(entry.checks for entry in entries)
        common = commonest([learner.mistakes[id] for learner in learners if id in learner.mistakes])
        return [id, titles[id], str(at), f"{passed} of {len(entries)}", str(checks), common]

    columns = ["learner", "is at", "since", "checks", "hints", "last mistake", *begun, "passed"]
    tables = _table(f"{len(learners)} learners", columns, map(learner_row, learners))
    columns = ["exercise", "", "are at it", "passed", "checks", "commonest mistake at the last check"]
    tables += _table("Exercises that were begun", columns, map(exercise_row, begun))
    legend = ", ".join(f"{sign} {state}" for state, sign in SIGN.items())
    return _page("The class", f"{_controls(guessing, token)}{tables}<p>{html.escape(legend)}</p>", AGAIN_S)


def _controls(guessing: Guessing, token: str) -> str:
    """What the teacher does about *Guess*, and what the class said."""
    ask = '<button name="do" value="new">Guess, for all</button>'
    show = '<button name="do" value="show">Show the answer</button>' if guessing.open else ""
    form = f'<form method="post" action="guess/control">{token}{show} {ask} <a href="guess">the question</a></form>'
    if not guessing.question:
        return form
    if guessing.open:  # the teacher's screen may be on a wall
        return f"{form}<p>{len(guessing.guesses)} guessed: {html.escape(', '.join(sorted(guessing.guesses)))}</p>"
    right = guessing.right()
    rows = [(name, _names(guess), "right" if name in right else "") for name, guess in sorted(guessing.guesses.items())]
    counted = f"{len(rows)} guessed, {len(right)} right: {_names(guessing.question.answer)}"
    if mistake := guessing.commonest_mistake():
        counted += f"; commonest mistake: {_names(mistake[0])} ({mistake[1]})"
    return f"{form}<p>{html.escape(counted)}</p>" + _table("", ["learner", "said", ""], rows)


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def guess_page(guessing: Guessing, learner: str, token: str) -> str:
    """The question as a learner sees it; as nobody (``learner`` is "") it has no form, for a wall.

    Once a learner has guessed, it waits for the answer.
    """
    question = guessing.question
    if not question:
        return _page("Guess", "<p>No question yet. This page waits for one.</p>", SOON_S)
    playing = guessing.open and learner and learner not in guessing.guesses
    size = question.field.block_size
    settings = (
        f"At most {question.field.slots} requests at once, {question.field.step_tokens} tokens a step, "
        f"{question.field.blocks} KV blocks of {size} tokens, first come first served. "
        f"{question.policy}: {POLICIES[question.policy]}."
    )
    said = f"You said {_names(guessing.guesses[learner])}." if learner in guessing.guesses else ""
    if guessing.shown:
        right = learner in guessing.right()
        verdict = f"It was {_names(question.answer)}. {'Right.' if right else said} {question.reason}"
    elif playing:
        verdict = "Which requests are in the next step?"
    else:
        verdict = f"{said} {len(guessing.guesses)} guessed. The answer comes when your teacher shows it."
    body = f"<p>{html.escape(settings)}</p>{_schedule(guessing, question, bool(playing))}"
    body += f"<p role=status><strong>{html.escape(verdict.strip())}</strong></p>"
    if playing:
        body = f'<form method="post">{token}{body}<button>This is my guess</button></form>'
    legend = "A number is the tokens that a step computed: blue of the prompt, green a token of the answer."
    return _page("Guess", f"{body}<p>{legend}</p>", 0 if playing else SOON_S)


def _schedule(guessing: Guessing, question: Question, playing: bool) -> str:
    """A row for each request that lives, a column for each of the last steps, and one for the step that is asked."""
    asked = len(question.lines) - 1
    steps = range(max(0, asked - STEPS), asked)
    heads = ["request", "prompt", "answer so far", "KV blocks", *(f"step {step + 1}" for step in steps)]
    head = "".join(f"<th>{text}</th>" for text in heads) + f'<th class="asked">step {asked + 1}</th>'
    rows = []
    for one in question.requests:
        if question.over(one.name) and not any(question.cell(one.name, step).text for step in steps):
            continue
        first = [one.name, f"{one.prompt}", f"{question.made(one.name)} of {one.limit}", f"{question.blocks(one.name)}"]
        cells = "".join(f"<td>{text}</td>" for text in first)
        cells += "".join(_cell(question.cell(one.name, step)) for step in steps)
        if guessing.shown:
            cells += _cell(question.cell(one.name, asked), " asked")
        elif playing and not question.over(one.name):
            box = f'<input type="checkbox" name="in" value="{one.name}" aria-label="{one.name} is in the next step">'
            cells += f'<td class="asked">{box}</td>'
        else:
            cells += '<td class="asked"></td>'
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead>{''.join(rows)}</table>"


def _cell(cell: Cell, also: str = "") -> str:
    computed = "prefill" if cell.prefill else "decode"
    kind = cell.text if cell.text in ("", WAITS, PREEMPTED) else computed
    return f'<td class="{kind}{also}">{cell.text}</td>'
