"""What the pages for people say can be followed: commands come in an order that works, figures are those measured."""

from __future__ import annotations

import difflib
import importlib.util
import random
import re
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/*/*.md"),
        *ROOT.glob("labs/*/README.md"),
        *ROOT.glob("labs/*/exercises/*/*.md"),
    ]
)
BLOCKS = re.compile(r"^```\w*\n(.*?)^```$|((?:^(?:> ?)? {4}\S[^\n]*\n)+)", re.M | re.S)
ENDLESS = re.compile(r"labctl (?:watch|chat)\b|labctl metrics .*--follow|^locust ")
LESSONS = sorted(ROOT.glob("labs/*/README.md"))
SERVED = ("03", "05", "06")  # labs with the engine behind `tensorrt_llm`


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def module(path: str, *beside: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").replace("-", "_"), ROOT / path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_quoted_block_was_wrapped_into_running_text(page: Path) -> None:
    prose = BLOCKS.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"^.*\S > .*$", re.sub(r"`[^`]*`", "", prose), re.M) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_command_follows_one_that_does_not_end(page: Path) -> None:
    for block in BLOCKS.finditer(page.read_text(encoding="utf-8")):
        lines = [line.strip(" >") for line in (block[1] or block[2]).splitlines() if line.strip(" >")]
        late = [line for at, line in enumerate(lines) if any(ENDLESS.match(before) for before in lines[:at])]
        assert late == [], f"{lines[0]} ...: these would never run"


def test_the_readme_says_how_labctl_comes_onto_the_path_before_it_is_used() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"^labctl |^    labctl ", readme, re.M)
    assert first and "source .venv/bin/activate" in readme[: first.start()]
    assert readme.index("git clone") < readme.index("make lab-iterative")


def test_setup_and_a_labs_run_end_with_the_next_command() -> None:
    ends = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8").rstrip().splitlines()[-1]
    assert ends.index("source .venv/bin/activate") < ends.index("labctl learn")
    made = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "-o", ".venv/.ready", "lab-iterative"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert made.index("labctl run iterative") < made.index("make learn ARGS=iterative")


def test_every_page_of_docs_is_found_from_the_readme_in_two_steps() -> None:
    index = ROOT / "docs" / "README.md"
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([\w/-]+\.md)\)", index.read_text("utf-8"))}
    assert {*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")} - linked == {index}


@pytest.mark.parametrize("number", SERVED)
def test_a_lab_with_an_engine_says_which_engine_a_cpu_has(number: str) -> None:
    (page,) = ROOT.glob(f"labs/{number}-*/README.md")
    beginning = page.read_text(encoding="utf-8")[:1500]
    assert "OpenVINO GenAI" in beginning and "TensorRT-LLM" in beginning


@pytest.mark.parametrize("page", LESSONS, ids=named)
def test_every_lesson_has_the_same_headings(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.M)
    assert headings == [
        "What you learn",
        "Before you begin",
        "Run it",
        "What you see",
        "How it works",
        "Questions",
        "Exercises",
        "Where next",
    ]


@pytest.mark.parametrize("page", LESSONS, ids=named)
def test_every_answer_of_a_lesson_is_folded(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")
    assert text.count("<summary>Answer</summary>") >= 2
    assert "*Answer:*" not in text


@pytest.mark.parametrize("page", LESSONS, ids=named)
def test_a_lesson_puts_labctl_on_the_path_before_it_uses_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    first = re.search(r"^\s*labctl ", text, re.M)
    assert first and "source .venv/bin/activate" in text[: first.start()]


@pytest.mark.parametrize("page", LESSONS, ids=named)
def test_every_file_that_a_lesson_names_is_there(page: Path) -> None:
    files = re.findall(r"`((?:src|model_repos|labs|tests|scripts)/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8"))
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_the_instructors_plans_take_as_long_as_their_titles_say() -> None:
    page = (ROOT / "docs" / "teach" / "instructor.md").read_text(encoding="utf-8")
    plans = re.findall(r"^## [^\n]*\((\d) h (\d+) min\)\n(.*?)(?=^## |\n[A-Z])", page, re.M | re.S)
    assert len(plans) == 2
    for hours, minutes, plan in plans:
        assert sum(map(int, re.findall(r"^\| (\d+) \|", plan, re.M))) == 60 * int(hours) + int(minutes)


def test_the_instructors_answers_are_the_figures_that_were_measured() -> None:
    page = (ROOT / "docs" / "teach" / "instructor.md").read_text(encoding="utf-8")
    measured = (ROOT / "docs" / "develop" / "measurements.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith('| "') and "measurements.md" in line]
    assert len(rows) >= 3
    for row in rows:
        figures = re.findall(r"\d+\.\d+|\b\d+(?= ms)", row.split("|")[2])
        assert figures and [figure for figure in figures if figure not in measured] == [], row


@pytest.mark.parametrize(
    ("step_s", "tokens", "said"),
    [(0.02, 100, "they take 2.0 s"), (0.001, 400, "the most that an answer here has"), (0.2, 64, "they take 12.8 s")],
)
def test_lab_02_says_how_long_its_answers_take_on_this_machine(step_s: float, tokens: int, said: str) -> None:
    made, sentence = module("labs/02-iterative-scheduling/client.py").length(step_s, 2.0)
    assert made == tokens and said in sentence
    assert f"{tokens * step_s:.1f} s" in sentence


def test_a_colour_that_covers_few_pixels_is_kept_in_a_film() -> None:
    chance = random.Random(1)
    picture = Image.new("RGB", (300, 200), "#fbfaf7")
    for x in range(300):
        for y in range(100):  # a page's many greys and browns
            picture.putpixel((x, y), tuple(min(255, chance.randint(60, 240) + tint) for tint in (9, 4, 0)))
    for y in range(3):
        for x in range(15):
            picture.putpixel((150 + x, 150 + y), (0, 158, 115))
    few = module("scripts/watch_images.py").few_colours(picture).convert("RGB")
    kept = few.getpixel((155, 151))
    assert isinstance(kept, tuple) and max(abs(a - b) for a, b in zip(kept, (0, 158, 115), strict=True)) <= 12


def test_lab_07_says_an_error_once_whatever_sequence_it_is_of() -> None:
    reasons = {f"inference request for sequence {n} must specify the START flag": 2 for n in range(1000, 1044)}
    grouped = module("labs/07-scale-out/lessons.py").grouped({**reasons, "StatusCode.UNAVAILABLE": 1})
    assert grouped == Counter(
        {"inference request for sequence N must specify the START flag": 88, "StatusCode.UNAVAILABLE": 1}
    )


MODELS = sorted([*ROOT.glob("model_repos/*/*/1/model.py"), *ROOT.glob("labs/*/models/*/1/model.py")])


@pytest.mark.parametrize("path", MODELS, ids=named)
def test_a_model_of_a_lab_is_two_files_and_can_be_read_at_a_glance(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 80
    files = {str(file.relative_to(path.parents[1])) for file in path.parents[1].rglob("*") if file.suffix != ".pyc"}
    upstreams = {"1/model.json"} if path.parents[1].name == "vllm_model" else set()  # as NVIDIA's vllm_backend has it
    assert files - {"__pycache__", "1/__pycache__", "1"} == {"config.pbtxt", "1/model.py"} | upstreams


def test_a_model_of_an_exercise_can_be_read_at_a_glance() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in ROOT.glob("labs/*/exercises/*/**/model.py")}
    assert lengths and max(lengths.values()) <= 80, lengths


def test_lab_02_prints_the_difference_of_its_two_models() -> None:
    simple, iterative = (
        (ROOT / f"model_repos/iterative/{name}-gpt2/1/model.py").read_text(encoding="utf-8").splitlines(keepends=True)
        for name in ("simple", "iterative")
    )
    hunks = list(difflib.unified_diff(simple, iterative, n=1))[2:]
    page = (ROOT / "labs/02-iterative-scheduling/README.md").read_text(encoding="utf-8")
    assert f"```diff\n{''.join(hunks)}```" in page
