"""Make a teacher's kit from the documentation: scripts/teach.py FOLDER [--seed N] (`make teach`)

Slides for each script of docs/teach/instructor.md, the scripts with their minutes, a handout, an answer sheet, an exit
quiz with its keys, and a check list, each as HTML and, where Chromium is installed, as PDF. A row of the script names
parts of scripts/teach_parts/slides.md, and exercises: their slides are the whole task.
"""

from __future__ import annotations

import argparse
import difflib
import html
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, sync_playwright

import quiz
import slide_drawings
from labctl.catalog import load_catalog
from labctl.learn.exercise import find_exercises
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
INSTRUCTOR = ROOT / "docs" / "teach" / "instructor.md"
PARTS = Path(__file__).parent / "teach_parts"
SCRIPTS = {"half-day": "Half a day", "day": "A day"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)]+)\)")
FENCE = re.compile(r"^```([^\n]+)\n(.*?)^```$", re.M | re.S)
SIZES = {"huge": 560, "medium": 1000, "small": 2000}  # of letters, and the most characters of a task
TITLE = "How does a server schedule requests to a language model?"
render = MarkdownIt("commonmark", {"html": True}).enable("table").render


@dataclass
class Slide:
    """A slide. ``body``, ``notes`` and ``answer``, which a click shows: Markdown with absolute paths of pictures.

    ``kind``: a class of scripts/teach_parts/slides.html.
    """

    title: str
    body: str
    notes: str = ""
    answer: str = ""
    kind: str = ""

    def html(self) -> str:
        """The slide without its title and notes; the answer's picture takes the place of the body's."""
        asked, found = drawings(self.body), drawings(self.answer)
        if not (asked and found):
            after = (
                f'<div class="fragment answer">{render(drawn(self.answer, self.title))}</div>' if self.answer else ""
            )
            return render(drawn(self.body, self.title)) + after
        picture, drawing = asked[-1], found[0]
        words = self.answer.replace(drawing[0], "").strip()
        return (
            f'{render(self.body[: picture.start()])}<div class="pair">'
            f'<div class="fragment fade-out" data-fragment-index="0">{drawn(picture[0], self.title)}</div>'
            f'<div class="fragment" data-fragment-index="0">{drawn(drawing[0], self.title)}</div></div>'
            + (f'<div class="fragment answer" data-fragment-index="0">{render(words)}</div>' if words else "")
        )


@dataclass
class Row:
    """A row of a script: when it begins, how long it takes (minutes), and what is done."""

    begins: int
    minutes: int
    what: str
    slides: list[Slide] = field(default_factory=list)

    @property
    def clock(self) -> str:
        return clock(self.begins)

    @property
    def title(self) -> str:
        return plain(re.sub(r" \(\[[^]]+\]\([^)]+\)\)", "", self.what))  # what a row only points at

    @property
    def commands(self) -> list[str]:
        return re.findall(r"`((?:labctl|make) [^`]+)`", self.what)


def clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02d}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plain(text: str) -> str:
    """Markdown without its links: the kit stands alone, and only addresses of the web lead anywhere."""
    return LINK.sub(lambda found: found[0] if found[2].startswith("http") else found[1], text)


def read(path: Path) -> str:
    """A page, with absolute paths of its pictures."""
    text = path.read_text(encoding="utf-8")
    return PICTURE.sub(lambda found: f"![{found[1]}]({(path.parent / found[2]).resolve()})", text)


def section(text: str, heading: str) -> str:
    """The text below the heading that begins so. Raises KeyError."""
    found = re.search(rf"^(#+) {re.escape(heading)}\b[^\n]*\n(.*?)(?=^#{{1,2}} |\Z)", text, re.M | re.S)
    if not found:
        raise KeyError(f"no page has a heading {heading!r}")
    return found[2].strip()


def drawn(text: str, label: str) -> str:
    """Markdown in which a fence of slide_drawings.py is its picture."""
    for found in drawings(text):
        picture = slide_drawings.draw(found[1], found[2], label)
        text = text.replace(found[0], f'<div class="drawing">{picture}</div>')
    return text


def drawings(text: str) -> list[re.Match[str]]:
    """The fences of a text that are pictures."""
    return [found for found in FENCE.finditer(text) if found[1].split()[0] in slide_drawings.DRAWINGS]


@cache
def parts() -> dict[str, list[Slide]]:
    """The parts of slides.md by their headings."""
    text = re.sub(r"<!--.*?-->", "", read(PARTS / "slides.md"), flags=re.S)
    found: dict[str, list[Slide]] = {}
    for heading, part in re.findall(r"^# ([^\n]+)\n(.*?)(?=^# [^\n]+\n\n##|\Z)", text, re.M | re.S):
        for title, text_of_slide in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", part, re.M | re.S):
            visible, _, notes = text_of_slide.partition("\nNotes: ")
            body, _, answer = visible.partition("\n***\n")
            kind = "" if "![" in body or drawings(body + answer) else "huge"
            slide = Slide(title, body.strip(), notes.strip(), answer.strip(), kind)
            found.setdefault(heading, []).append(slide)
    return found


def script(heading: str) -> list[Row]:
    """The rows of a script in instructor.md, with the slides that each opens."""
    rows, begins = [], 0
    for minutes, what in re.findall(r"^\| (\d+) \| (.+) \|$", section(read(INSTRUCTOR), heading), re.M):
        row = Row(begins, int(minutes), what)
        row.slides = [*slides(row)]
        rows.append(row)
        begins += row.minutes
    rows[0].slides[:0] = [
        Slide(TITLE, f"Triton Serving Labs: {heading.lower()}", kind="cover"),
        agenda(rows),
        *answered(rows),
    ]
    rows[-1].slides += [*answered(rows, now=True), *parts()["onward"]]
    for row in rows:
        commands = "".join(f"\n\n    {command}" for command in row.commands)
        for slide in row.slides:
            slide.notes = f"**{row.clock}**, {row.minutes} min: {row.title}{commands}\n\n{slide.notes}"
    return rows


def slides(row: Row) -> Iterator[Slide]:
    """The slides of what a row names, in order: of parts of slides.md, and of exercises. A break says when it ends."""
    exercises = re.findall(r"\b\d\d[a-f]\b", row.what)
    named = re.findall(r"\blabs? (\d\d)\b|\[[^\]]+\]\(([^)]+)\)|`labctl (doctor)", row.what, re.I)
    keys = [lab or target.partition("#")[0].rpartition("/")[2] or command for lab, target, command in named]
    for key in keys:
        yield from (replace(slide) for slide in parts()[key])
    if exercises:
        yield turn(row, exercises)
        yield from map(exercise_slide, exercises)
    elif not keys:
        yield Slide(capital(row.title), f"{row.minutes} minutes", kind="break")


def agenda(rows: Sequence[Row]) -> Slide:
    lines = "".join(f"| {capital(row.title)} | {row.minutes} min |\n" for row in rows)
    return Slide(
        "What do we do today?", f"| | |\n|---|---|\n{lines}", kind="agenda" if len(rows) < 10 else "agenda full"
    )


def answered(rows: Sequence[Row], now: bool = False) -> Iterator[Slide]:
    """The questions of the course's labs that a script names."""
    labs = dict.fromkeys(lab for row in rows for lab in re.findall(r"\blab (\d\d)\b", row.what, re.I))
    asked = {lab["lab"]: lab["answers"] for lab in yaml.safe_load((ROOT / "labs/course.yaml").read_text("utf-8"))}
    title = "What can you answer now?" if now else "What can you answer at the end?"
    yield Slide(title, "".join(f"1. {asked[lab]}\n" for lab in labs), kind="huge" if len(labs) < 4 else "questions")


def turn(row: Row, exercises: Sequence[str]) -> Slide:
    """What a class does in a row of exercises; of a row with a lab, only its exercises count."""
    manifests = [exercise(id)[1] for id in exercises]
    lines = "".join(
        f"| {id} | {found['title']} | {found['minutes']} min |\n"
        for id, found in zip(exercises, manifests, strict=True)
    )
    minutes = sum(found["minutes"] for found in manifests) if "lab " in row.what.lower() else row.minutes
    body = f"| | | |\n|---|---|---|\n{lines}\n```bash\nmake learn\n```\n\n{minutes} minutes, alone or in pairs"
    title = "which of these can you solve?" if len(exercises) > 1 else "can you solve this one?"
    return Slide(f"Your turn: {title}", body, kind="huge")


def exercise(id: str) -> tuple[Path, dict[str, Any]]:
    (folder,) = ROOT.glob(f"labs/*/exercises/{id}-*")
    return folder, yaml.safe_load((folder / "exercise.yaml").read_text(encoding="utf-8"))


def exercise_slide(id: str) -> Slide:
    """The whole task of an exercise, in letters as large as it allows."""
    folder, manifest = exercise(id)
    task = plain((folder / "task.md").read_text(encoding="utf-8").strip())
    said = "".join(f"\n- {text}" for text in dict.fromkeys(manifest["wrong"].values()))
    kind = next(size for size, most in SIZES.items() if len(task) < most)
    return Slide(f"{id}: {manifest['title']}", task, f"{manifest['minutes']} min. The check says:\n{said}", kind=kind)


# -- the sheets -------------------------------------------------------------------------------------------------------


def answers() -> str:
    """Every exercise: minutes, the solution as a difference from the starter, the foreseen mistakes, the hints."""
    text = "# Answer sheet\n\n*Not for learners.* `labctl exercise verify --all` checks all of it on this machine.\n"
    workspace = Workspace(ROOT, ROOT / ".cache")
    for one in find_exercises(workspace, load_catalog(workspace)):  # in the order of the course
        id, more = one.id, "" if one.core else ", more of the lab"
        folder, manifest = exercise(id)
        text += f"\n## {id}: {manifest['title']}\n\n{manifest['kind']}, about {manifest['minutes']} min{more}\n"
        for name in manifest["files"]:
            text += f"\n```diff\n{difference(folder, name)}\n```\n"
        text += (
            f"\n| a learner who | sees, and you say |\n|---|---|\n| leaves the starter | {cell(manifest['says'])} |\n"
        )
        for name, said in manifest["wrong"].items():
            text += f"| *{name.replace('_', ' ')}* | {cell(said)} |\n"
        text += "\nHints, from a nudge to nearly the answer:\n\n" + "".join(
            f"1. {hint}\n" for hint in manifest["hints"]
        )
    return text


def difference(folder: Path, name: str) -> str:
    """The lines of the solution that the starter lacks, with two around them."""
    starter, solution = ((folder / part / name).read_text(encoding="utf-8") for part in ("starter", "solution"))
    return "\n".join(
        list(difflib.unified_diff(starter.splitlines(), solution.splitlines(), name, name, "", "", 2, ""))[2:]
    )


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def handout() -> str:
    """One page for each learner: the picture, the words, the commands."""
    glossary, readme = read(ROOT / "docs" / "glossary.md"), read(ROOT / "README.md")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", glossary, re.M)
    words = {word.strip(): meaning.strip() for word, meaning in rows}
    chosen = "step; slot; static batching; in-flight (continuous) batching; preemption, victim; prefill; decode"
    chosen += "; token budget; KV cache; prefix caching; TTFT; TPOT; goodput"
    picture = next(PICTURE.finditer(readme))[0]
    commands = re.search(r"```bash\n(.*?)```", section(readme, "Try things by hand"), re.S)[1]  # type: ignore[index]
    exercises = re.search(r"```bash\n(.*?)```", section(read(ROOT / "docs/learn/labs.md"), "Exercises"), re.S)[1]  # type: ignore[index]
    return (
        f"# Triton Serving Labs on one page\n\n{picture}\n\n## The words\n\n| | |\n|---|---|\n"
        + "".join(f"| **{word}** | {words[word]} |\n" for word in chosen.split("; "))
        + f"\n## The commands\n\n```\n{align(commands + exercises)}\n```\n"
    )


def align(commands: str) -> str:
    """Commands with their comments below each other."""
    rows = [re.split(r"\s+(?=# )", line, maxsplit=1) for line in commands.splitlines()]
    width = max(len(row[0]) for row in rows if len(row) > 1)
    return "\n".join(f"{row[0]:<{width}}  {row[1]}" if len(row) > 1 else row[0] for row in rows)


def room() -> str:
    """What to do before the day, and what goes wrong on it."""
    text = read(INSTRUCTOR)
    before = re.sub(r"^\d+\. ", "- ☐ ", section(text, "Before the day"), flags=re.M)
    wrong = section(text, "What goes wrong in rooms of twenty")
    day = "- ☐ `labctl doctor --workshop` on each machine\n- ☐ the slides open, and S shows their notes\n"
    return plain(f"# Check list for the room\n\n{before}\n\n## On the day\n\n{day}\n## What goes wrong\n\n{wrong}\n")


def exit_quiz(questions: Sequence[quiz.Question], seed: int, keys: Path | None) -> str:
    """The quiz, or with a folder for drawings its keys."""
    text = f"# Exit quiz{': keys' if keys else ''}\n\nQuiz {seed}. {'' if keys else 'Name: ____________________'}\n"
    for number, question in enumerate(questions, 1):
        text += f"\n## {number}\n\n{question.text}\n\n| | |\n|---|---|\n"
        text += "".join(f"| {asked} | {f'**{key}**' if keys else '______'} |\n" for asked, key in question.keys.items())
        if keys and (drawing := question.drawing()):
            drawing.save(keys / f"quiz-{number}.png")
            text += f"\n![The schedules]({keys / f'quiz-{number}.png'})\n"
    return text


# -- HTML and PDF -----------------------------------------------------------------------------------------------------


def page(folder: Path, name: str, title: str, text: str, kind: str = "sheet") -> None:
    """Write a page of the kit; the pictures that it shows go with it."""
    for found in set(re.findall(r'src="(/[^"]+)"', text)):
        (folder / "images").mkdir(exist_ok=True)
        if Path(found).parent != folder / "images":
            shutil.copyfile(found, folder / "images" / Path(found).name)
        text = text.replace(f'src="{found}"', f'src="images/{Path(found).name}"')
    frame = (PARTS / f"{kind}.html").read_text(encoding="utf-8")
    (folder / f"{name}.html").write_text(
        frame.replace("TITLE", html.escape(title)).replace("BODY", text), encoding="utf-8"
    )


def name_of(row: Row, number: int) -> str:
    return f"at-{row.begins}" + (f"-{number}" if number else "")


def deck(rows: Sequence[Row]) -> str:
    """The slides of a script; one that a row begins with is found as `#/at-MINUTE`."""
    text = ""
    for row in rows:
        for number, slide in enumerate(row.slides):
            text += (
                f'<section id="{name_of(row, number)}" class="{slide.kind}">'
                f"<h2>{render(slide.title)}</h2>{slide.html()}"
                f'<aside class="notes">{render(slide.notes)}</aside></section>\n'
            )
    return text


def timetable(rows: Sequence[Row], name: str, title: str) -> str:
    """A script: each minute opens its slide."""
    text = f'<h1>{title}</h1>\n<p><a href="{name}.html">The slides</a> (S: notes)</p>\n<table>'
    for row in rows:
        opens = "".join(
            f'<li><a href="{name}.html#/{name_of(row, number)}">{html.escape(plain(slide.title))}</a></li>'
            for number, slide in enumerate(row.slides)
        )
        commands = "".join(f"<pre>{html.escape(command)}</pre>" for command in row.commands)
        text += (
            f'<tr><td><a href="{name}.html#/at-{row.begins}">{row.clock}</a></td><td>{row.minutes}&nbsp;min</td>'
            f"<td>{render(row.title)}{commands}<ol>{opens}</ol></td></tr>\n"
        )
    return text + "</table>\n"


def print_pages(folder: Path, browser: Browser) -> None:
    """Write a PDF beside each page but the first."""
    page = browser.new_page()
    for name in sorted(path.stem for path in folder.glob("*.html") if path.stem != "index"):
        address = (folder / f"{name}.html").as_uri()
        page.goto(f"{address}?print-pdf" if name in SCRIPTS else address)
        if name in SCRIPTS:
            page.locator(".pdf-page").last.wait_for()
        page.pdf(path=folder / f"{name}.pdf", prefer_css_page_size=True, print_background=True)
    page.close()


def make(folder: Path, seed: int) -> None:
    """Write the kit's pages, without PDFs."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (reveal,) = ROOT.glob(".venv/teach/lib/python3*/site-packages/sphinx_revealjs/_static/revealjs")
    shutil.copytree(reveal / "dist", folder / "reveal", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.map"))
    shutil.copytree(reveal / "plugin" / "notes", folder / "reveal" / "notes", dirs_exist_ok=True)
    (folder / "images").mkdir(exist_ok=True)
    for name, heading in SCRIPTS.items():
        rows = script(heading)
        page(folder, name, heading, deck(rows), "slides")
        page(folder, f"{name}-script", "script", timetable(rows, name, heading))
    questions = quiz.draw(seed)
    sheets = {
        "handout": handout(),
        "answers": answers(),
        "quiz": exit_quiz(questions, seed, None),
        "quiz-keys": exit_quiz(questions, seed, folder / "images"),
        "room": room(),
    }
    for name, text in sheets.items():
        page(folder, name, name, render(text))
    titles = {
        **{f"{name}-script": f"{title}: the script, which opens the slides" for name, title in SCRIPTS.items()},
        **{name: f"{title}: slides" for name, title in SCRIPTS.items()},
        **{name: text.splitlines()[0].lstrip("# ") for name, text in sheets.items()},
    }
    listed = "".join(
        f'<li><a href="{name}.html">{title}</a> (<a href="{name}.pdf">PDF</a>)</li>' for name, title in titles.items()
    )
    page(folder, "index", "A teacher's kit", f"<h1>A teacher's kit</h1><ul>{listed}</ul>")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a teacher's kit from the documentation.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="another exit quiz (default: 1)")
    chosen = parser.parse_args()
    make(chosen.folder, chosen.seed)
    if path := next(filter(None, map(shutil.which, BROWSERS)), None):
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            print_pages(chosen.folder.resolve(), browser)
            browser.close()
    else:
        print("no PDFs: install Chromium, then make teach again")
    print(f"{chosen.folder}/index.html")


if __name__ == "__main__":
    main()
