"""A room with two learners on real servers, as root; and its pages in a browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accessible import violations
from hub_room import PASSED, room
from lab_server import LabServer

from labctl.clock.clock import Clock
from labctl.hub import serve
from labctl.hub.app import Hub
from labctl.hub.guess import Guess
from labctl.learn import server
from labctl.learn.exercise import find_all, find_exercise
from labctl.listener import Silent
from labctl.pages.live.lines import held_steps
from labctl.runtimes import seats
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.clients.stream import TextStream
from labkit.errors import LabError
from labkit.waiting import attempts

pytestmark = pytest.mark.night

ID = "02a"
CHECK_S = 400.0


@pytest.fixture(scope="module")
def hub(checkout: Path) -> Iterator[Hub]:
    """A room of two, whose learners have handed in the solution and the starter."""
    if os.geteuid():
        pytest.skip("keeping learners apart needs root")
    checkout.chmod(0o711)  # learners walk through it
    session = Session.open(Silent())
    session = Session(Workspace(checkout, session.workspace.cache), session.catalog, session.listener)
    exercises = [find_exercise(find_all(session.workspace, session.catalog), ID)]
    settings = serve.Settings(2, checks=1, memory_mib=3072, idle_s=600.0, apart=True)
    try:
        made, _ = serve.open_hub(session, exercises, settings, exposed=False, secure=False, new_codes=False)
        made.room.seats[1].prepare()
        made.room.seats[1].run(["timeit", "-n1", "-r1", "pass"], "", 60.0)
    except LabError as error:  # a container may forbid namespaces; where everything is required, this is a failure
        if os.environ.get("LABS_REQUIRE_DOCKER"):
            raise
        pytest.skip(str(error))
    for learner, answer in ((1, "solution"), (2, "starter")):
        text = (exercises[0].folder / answer / "model.py").read_text(encoding="utf-8")
        made.room.ask(learner, ID, {"model.py": text})
    for _ in attempts(CHECK_S, 0.2):
        if all(made.room.checks.place(learner) is None for learner in (1, 2)):
            break
    yield made
    made.close()


def in_seat(hub: Hub, learner: int, code: str) -> str:
    """What Python code prints in a learner's seat; the name of the exception that it raises."""
    caught = f"try:\n {code}\nexcept OSError as error:\n print(type(error).__name__)"
    return (hub.room.seats[learner].run(["timeit", "-n1", "-r1", caught], "", 60.0) or "").splitlines()[0]


def port_of(hub: Hub, learner: int) -> int:
    """Of the learner's own server, by the record in its process."""
    names = list((hub.room.seats[learner].folder / ".labs" / server.STACK).glob("state.json"))
    return int(names[0].read_text().partition('"http": "127.0.0.1:')[2].partition('"')[0])


def test_each_verdict_is_that_of_the_learners_own_file(hub: Hub) -> None:
    first, second = (hub.room.desks[learner].verdicts[ID] for learner in (1, 2))
    assert first.passed, first.sentence
    assert second.sentence == hub.room.exercises[ID].manifest.says


def test_a_learners_code_runs_as_a_user_of_its_own(hub: Hub) -> None:
    assert in_seat(hub, 2, "import os; print(os.getuid())") == str(seats.FIRST_USER + 2)


@pytest.mark.parametrize(
    "what", ["seats/01/exercises/02a/model.py", "seats/01", "codes.json", "learners", "report", "seat-01.log"]
)
def test_a_learners_code_cannot_read_what_is_anothers(hub: Hub, what: str) -> None:
    path = hub.room.folder / what
    reads = (
        f"import os; print(os.listdir({str(path)!r}) if os.path.isdir({str(path)!r}) else open({str(path)!r}).read())"
    )
    assert path.exists()
    assert in_seat(hub, 2, reads) == "PermissionError"


def test_a_learners_code_reaches_its_own_server_and_no_other(hub: Hub) -> None:
    port = port_of(hub, 1)
    connects = f'import socket; socket.create_connection(("127.0.0.1", {port}), 5).close(); print("connected")'
    assert in_seat(hub, 1, connects) == "connected"
    assert in_seat(hub, 2, connects) == "ConnectionRefusedError"


def test_a_learners_code_sees_no_process_of_another(hub: Hub) -> None:
    users = "import os; print({os.stat('/proc/' + n).st_uid for n in os.listdir('/proc') if n.isdigit()} - {0})"
    assert in_seat(hub, 2, users) == str({seats.FIRST_USER + 2})


def test_a_learners_code_has_limits_of_memory_processors_and_processes(hub: Hub) -> None:
    groups = [
        group for group in hub.room.seats[2]._groups() if all((group[0] / name).exists() for name, _ in group[1:])
    ]
    if not groups and not os.environ.get("LABS_REQUIRE_DOCKER"):  # there this is a failure, as for namespaces
        pytest.skip("this machine's control groups cannot be written")
    assert groups
    for group, *limits in groups:
        for name, value in limits:
            assert (group / name).read_text().split()[0] == value
    assert in_seat(hub, 2, "print(open('/proc/self/cgroup').read().count('labs-seat'))") == str(len(groups))


def test_a_learners_live_page_shows_their_own_server(hub: Hub) -> None:
    hub.live[1].wake()
    with hub.room.seats[1].connect(hub.live[1]._port) as connection:
        connection.sendall(f"GET /{hub.live[1]._token}/ HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b" 200 " in connection.recv(100)


def test_the_room_guesses_the_next_batch_of_a_stack_whose_clock_stands_still(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    up, session = lab_server("iterative"), Session.open(Silent())
    session = Session(Workspace(checkout, session.workspace.cache), session.catalog, session.listener)
    guess = Guess(session.workspace, lambda: [record for _, record in session.running() if record.stack == "iterative"])
    clock, model = Clock(up.run_dir, ("simple-gpt2", "iterative-gpt2")), "iterative-gpt2"
    clock.pause()
    try:
        with TextStream(up.grpc) as stream:
            records = [stream.send(model, prompt, max_tokens=4) for prompt in ("I have", "We saw")]
            for _ in attempts(60.0, 0.05):
                if sum(len(state["ids"]) for state in held_steps(clock)):
                    break
            guess.begin()
            assert guess.question is not None
            asked = guess.question
            guess.vote(1, asked.requests)
            guess.reveal()
            assert asked.batch and set(asked.batch) <= set(asked.requests)
            assert asked.right == (set(asked.batch) == set(asked.requests))
            with pytest.raises(LabError):
                guess.vote(1, asked.requests)
            guess.end()
            stream.wait(*records, timeout=60.0)
        assert [record.error for record in records] == ["", ""]
    finally:
        clock.run()


def test_a_room_is_used_with_the_keyboard_alone_on_a_phone(browser: Any, tmp_path: Path) -> None:
    sentence = "is there still a loop?"
    answers = iter([{"passed": False, "sentence": sentence, "rows": ["NO  tokens"]}, PASSED])
    with room(tmp_path, lambda call: next(answers)) as here, serve.listening(here.hub, 0) as address:
        page = browser.new_page(viewport={"width": 360, "height": 740})
        page.goto(address)
        page.keyboard.type(here.codes[1].lower())
        page.keyboard.press("Enter")
        page.get_by_role("link", name="02a").focus()
        page.keyboard.press("Enter")
        for expected in (sentence, PASSED["sentence"]):
            page.wait_for_load_state()  # the page of a verdict is loaded anew, and a key pressed before that is lost
            page.get_by_role("button", name="Check", exact=True).press("Enter")
            page.get_by_text(expected).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert violations(page) == []
        page.get_by_role("button", name="Leave").click()
        page.get_by_label("Your code").fill(here.codes[0])
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="The class").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert violations(page) == []
        page.close()
