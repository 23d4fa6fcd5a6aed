"""Practice without a server: the page's own archive, in a Python without a single package, judges as a server does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from checkout import ROOT
from exercise_cases import EXERCISES

from labctl.learn.attempts import find_attempt
from labctl.learn.exercise import Exercise
from labkit.predict import games, referee

PACK = ROOT / "scripts" / "site" / "practice" / "pack.py"
SCHEDULER = "from labsched import scheduler\n\nclass Scheduler(scheduler.Scheduler):\n"
IDS = ("05a", "05b", "05c", "06a", "06b")
CASES = [
    pytest.param(
        one,
        answer,
        sentence,
        id=f"{one.id}-{answer.rsplit('/', 1)[-1]}",
        marks=[pytest.mark.night] if answer.startswith("wrong/") else [],
    )
    for one in EXERCISES
    if one.id in IDS
    for answer, sentence in {
        "solution": "",
        "starter": one.manifest.says,
        **{f"wrong/{name}": said for name, said in one.manifest.wrong.items()},
    }.items()
]
# As in a browser, there is no fcntl, pwd or resource: what is asked of the page's Python, and its answer.
RUN = """
import importlib.abc, json, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "pwd", "resource") and name not in sys.modules:
            raise ModuleNotFoundError(name)

import tempfile
for name in ("fcntl", "pwd", "resource"):
    sys.modules.pop(name, None)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in ("fcntl", "pwd", "resource") else found(name, *more)
sys.meta_path.insert(0, Without())
sys.path = [sys.argv[1], *[one for one in sys.path if "site-packages" not in one], *sys.argv[4:]]
import browser
print(getattr(browser, sys.argv[2])(*json.loads(sys.argv[3])))
assert not [name for name in sys.modules if name in ("numpy", "yaml") and not sys.argv[4:]]
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("practice")
    subprocess.run([sys.executable, PACK, folder], check=True)
    subprocess.run([sys.executable, "-m", "zipfile", "-e", folder / "practice.zip", folder / "unpacked"], check=True)
    return folder


def asked(pack: Path, function: str, *arguments: str, packages: str = "") -> dict[str, Any]:
    command = [sys.executable, "-S", "-I", "-c", RUN, str(pack / "unpacked"), function, json.dumps(arguments)]
    done = subprocess.run([*command, *filter(None, [packages])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize(("one", "answer", "sentence"), CASES)
def test_an_answer_is_judged_with_the_sentence_that_the_server_gives(
    pack: Path, one: Exercise, answer: str, sentence: str
) -> None:
    (name,) = one.manifest.files
    source = find_attempt(one, answer).files[name]
    said = asked(pack, "check", one.id, source)
    assert said["passed"] == (answer == "solution"), said["verdict"]
    assert sentence in str(said["verdict"])


def test_a_mistake_is_told_with_its_line(pack: Path) -> None:
    assert asked(pack, "check", "05a", "x = (\n")["verdict"] == "scheduler.py, line 1: '(' was never closed"
    broken = SCHEDULER + "    places = property(lambda self: 1 / 0)\n"
    assert asked(pack, "check", "05a", broken)["verdict"] == "scheduler.py, line 4: ZeroDivisionError: division by zero"


def test_a_scheduler_that_admits_nobody_ends_with_a_sentence(pack: Path) -> None:
    said = asked(pack, "check", "05a", SCHEDULER + "    places = 0\n")
    assert "admits no request any more" in str(said["verdict"])
    assert "does `places` ever return more than 0?" in str(said["verdict"])


@pytest.mark.night
def test_a_policy_plays_in_the_arena_as_labctl_plays_it(pack: Path) -> None:
    path = ROOT / "labs" / "extras" / "arena" / "shortest_prompt.py"
    packages = str(Path(numpy.__file__).parents[1])
    said = asked(pack, "arena", path.read_text(), packages=packages)
    real = referee.judge_policy(path, games.public_traces())
    assert said["columns"] == ["policy", *referee.COLUMNS]
    mine, plain = said["rows"]
    assert mine == ["yours", *(round(real.figure(column), 1) for column in referee.COLUMNS)]
    assert plain[0] == "fcfs" and plain[1:] != mine[1:]


def test_a_policy_that_breaks_a_rule_is_told_which(pack: Path) -> None:
    packages = str(Path(numpy.__file__).parents[1])
    said = asked(pack, "arena", "def places(view):\n    return 10**6\n", packages=packages)
    assert str(said["foul"]).startswith("disqualified (places): it gives 1000000 places")


def test_the_archive_of_one_checkout_has_always_the_same_bytes(pack: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, PACK, tmp_path], check=True)
    assert (tmp_path / "practice.zip").read_bytes() == (pack / "practice.zip").read_bytes()
