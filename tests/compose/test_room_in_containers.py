"""A class on JupyterHub: three learners in three browsers, and one learner who fills the machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docker
import pytest
from browsing import browser
from checkout import ROOT
from exercise_cases import EXERCISES
from machinery import labctl
from waiting import eventually

from labctl.learn.attempts import find_attempt
from labctl.learn.room import TEACHER, Room

pytestmark = pytest.mark.night

__all__ = ["browser"]

UP_S, WORK_S = 1800, 400.0
LIMITS = ("--memory", "2500M")
TEXTS = {each.id: each for each in EXERCISES}
PICTURES = os.environ.get("LABS_ROOM_PICTURES", "")  # a folder: pictures of it are kept there


@dataclass
class Class:
    """A class that is up, in a checkout of its own."""

    root: Path
    address: str
    browser: Any

    @property
    def room(self) -> Room:
        return Room(self.root / ".labs" / "hub")

    def home(self, name: str) -> Path:
        return self.root / ".labs" / "hub" / "work" / name

    def run(self, *words: str) -> str:
        return str(labctl("hub", *words, root=self.root, timeout=UP_S).stdout)

    def enter(self, name: str, to: str = "", password: str = "") -> Any:
        """A page of a browser of their own, after the login."""
        page = self.browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{self.address}/hub/login?next={to}")
        page.fill("#username_input", name)
        page.fill(
            "#password_input", password or (self.room.teacher_password if name == TEACHER else self.room.password)
        )
        page.click("#login_submit")
        return page

    def sit_down(self, name: str) -> Any:
        """Their JupyterLab, with a terminal that answers."""
        page = self.enter(name)
        page.wait_for_selector(".jp-Terminal .xterm-screen", timeout=WORK_S * 1000)
        self.do(page, name, "true")
        return page

    def type(self, page: Any, command: str) -> None:
        page.click(".jp-Terminal .xterm-screen")
        page.keyboard.type(f"{command}\n")

    def begin(self, page: Any, name: str, command: str) -> Path:
        """Type a command; the file in which its output will be."""
        self.count = getattr(self, "count", 0) + 1
        out = self.home(name) / f"out-{self.count}"
        self.type(page, f"({command}) 2>&1 | tee ~/busy; mv ~/busy ~/{out.name}")
        return out

    def do(self, page: Any, name: str, command: str) -> str:
        """Type a command and wait for its end; what it said."""
        out = self.begin(page, name, command)
        eventually(out.exists, WORK_S)
        return out.read_text()

    def answer(self, name: str, which: str, id: str = "02a") -> None:
        """Put an answer where the learner's editor saves it."""
        for file, text in find_attempt(TEXTS[id], which).files.items():
            path = self.home(name) / "labs" / "exercises" / id / file
            path.write_text(text)

    def check(self, pages: dict[str, Any]) -> dict[str, str]:
        """Let all of them check at the same time; what each was told."""
        checks = {name: self.begin(page, name, "labctl exercise check") for name, page in pages.items()}
        return {name: eventually(partial(_said, out), WORK_S) for name, out in checks.items()}

    def picture(self, page: Any, name: str) -> None:
        if PICTURES:
            page.wait_for_timeout(1500)
            page.screenshot(path=Path(PICTURES) / f"{name}.png")


@pytest.fixture(scope="module")
def room(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Class]:
    root = tmp_path_factory.mktemp("class") / "labs"
    subprocess.run(["git", "clone", "--quiet", ROOT, root], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Class(root, f"http://127.0.0.1:{port}", browser)
    try:
        made.run("up", "--labs", "02", "--port", str(port), *LIMITS)
        yield made
    finally:
        labctl("hub", "down", root=root, check=False)
        assert ours(root) == []


def ours(root: Path) -> list[Any]:
    return list(docker.from_env().containers.list(all=True, filters={"label": f"labs.hub={root}"}))


def verdict(said: str) -> str:
    return next((line for line in said.splitlines() if line.startswith(("passed:", "not yet:"))), said)


@pytest.mark.xdist_group("room")
def test_three_learners_work_and_nobody_is_in_anybodys_way(room: Class) -> None:
    pages = {name: room.sit_down(name) for name in ("ada", "bo", "cy")}
    room.picture(pages["ada"], "1-a-learner-sits-down")
    assert [path.name for path in (room.home("ada") / "labs" / "exercises").iterdir()] == ["02a"]

    # Each works on an exercise at the same time: one is right, one makes a foreseen mistake, one has not written yet.
    for name, page in pages.items():
        room.do(page, name, "labctl exercise start 02a")
        room.answer(name, {"ada": "solution", "bo": "wrong/no_reschedule", "cy": "starter"}[name])
    said = room.check(pages)
    assert [verdict(text).startswith("passed") for text in said.values()] == [True, False, False], said
    assert "next: labctl exercise next" in said["ada"] and TEXTS["02a"].manifest.wrong["no_reschedule"] in " ".join(
        said["bo"].split()
    )
    room.picture(pages["ada"], "2-a-pass-names-the-next-exercise")
    link = next(word for word in room.do(pages["ada"], "ada", "labctl exercise next").split() if "workspaces" in word)
    assert link == f"{room.address}/user/ada/lab/workspaces/02b", link
    pages["ada"].goto(link)
    pages["ada"].wait_for_selector("text=The KV cache has eight slots", timeout=WORK_S * 1000)
    room.picture(pages["ada"], "3-the-link-opens-the-next")

    # The teacher sees it; a learner does not.
    teacher = room.enter(TEACHER, "/services/class/")
    teacher.wait_for_selector("text=3 learners", timeout=WORK_S * 1000)
    shown = teacher.inner_text("body")
    assert "no reschedule (1)" in shown and "02a One step at a time" in " ".join(shown.split())
    room.picture(teacher, "4-the-class")
    cy = room.enter("cy", "/services/class/")
    cy.wait_for_selector("text=403", timeout=WORK_S * 1000)
    assert "3 learners" not in cy.inner_text("body")

    # A newcomer needs nothing but the password; a learner's password does not make a teacher.
    room.sit_down("dee").context.close()
    assert "dee" in room.run("status")
    refused = room.enter(TEACHER, password=room.room.password)
    refused.wait_for_selector("text=Invalid username or password", timeout=WORK_S * 1000)


@pytest.mark.xdist_group("room")
def test_all_pass_and_go_on_to_the_second_exercise(room: Class) -> None:
    pages = {name: room.sit_down(name) for name in ("ada", "bo", "cy")}
    for name, page in pages.items():
        room.do(page, name, "labctl exercise start 02a")
        room.answer(name, "solution")
    assert all(verdict(text).startswith("passed: 02a") for text in room.check(pages).values())
    for name, page in pages.items():
        room.do(page, name, "labctl exercise next")
        room.answer(name, "solution", "02b")
    assert all(verdict(text).startswith("passed: 02b") for text in room.check(pages).values())
    teacher = room.enter(TEACHER, "/services/class/")
    teacher.wait_for_selector("text=learners", timeout=WORK_S * 1000)
    shown = " ".join(teacher.inner_text("body").split())
    assert re.search(r"02a One step at a time \d 3 of \d", shown), shown
    assert re.search(r"02b Free the slot \d 3 of \d", shown), shown
    room.picture(teacher, "8-two-exercises-passed")


@pytest.mark.xdist_group("room")
def test_who_fills_memory_and_processes_fills_their_own_container(room: Class) -> None:
    ada, cy = room.sit_down("ada"), room.sit_down("cy")
    room.do(ada, "ada", "labctl exercise start 02a")
    room.answer("ada", "solution")
    room.type(cy, "for i in 1 2 3 4; do python3 -c 'x = bytearray(10**9); input()' & done; :(){ :|:& };:")
    said = room.do(ada, "ada", "labctl exercise check")
    assert verdict(said).startswith("passed"), said
    room.picture(cy, "6-one-fills-the-container")
    containers = {each.name.rpartition("-")[2]: each for each in ours(room.root)}
    used = {name: containers[name].stats(stream=False) for name in ("ada", "cy")}
    limits = {name: (each["memory_stats"]["limit"], each["pids_stats"]["limit"]) for name, each in used.items()}
    assert set(limits.values()) == {(2500 * 2**20, 1024)}, limits
    assert used["cy"]["pids_stats"]["current"] <= 1024


@pytest.mark.xdist_group("room")
def test_no_secret_is_seen_from_outside_and_the_live_page_comes_through_jupyter(room: Class) -> None:
    ada = room.sit_down("ada")
    tokens = [path.read_text() for path in (room.root / ".labs" / "hub" / "tokens").iterdir()]
    secrets = [
        *tokens,
        room.room.password,
        room.room.teacher_password,
        (room.root / ".labs" / "hub" / "cookie_secret").read_text(),
    ]
    seen = json.dumps([[each.attrs, each.top(ps_args="-eo pid,args")] for each in ours(room.root)])
    assert len(tokens) >= 2 and not [secret for secret in secrets if secret in seen]
    room.do(ada, "ada", "labctl up iterative --ports auto")
    watching = room.home("ada") / "watching"
    room.type(ada, "labctl watch iterative 2>&1 | tee ~/watching")
    line = eventually(lambda: watching.exists() and "Ctrl-C" in watching.read_text() and watching.read_text(), WORK_S)
    address = next(word for word in line.split() if word.startswith("http"))
    assert address.startswith(f"{room.address}/user/ada/proxy/")
    live = ada.context.new_page()
    live.goto(address)
    live.click("#one")
    live.wait_for_selector(".request", timeout=WORK_S * 1000)
    room.picture(live, "7-the-live-page-inside-of-jupyter")


@pytest.mark.xdist_group("room")
def test_work_and_passwords_are_there_after_the_night(room: Class) -> None:
    (room.home("ada") / "labs" / "mine.txt").write_text("kept")
    port = room.address.rpartition(":")[2]
    labctl("hub", "down", root=room.root)
    assert ours(room.root) == []
    room.run("up", "--labs", "02", "--port", port, *LIMITS)
    ada = room.sit_down("ada")
    assert room.do(ada, "ada", "cat mine.txt") == "kept"


def _said(path: Path) -> str:
    """What a command wrote when it was over; "" until then."""
    return path.read_text() if path.exists() else ""
