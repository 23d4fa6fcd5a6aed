"""A class without Docker: a real JupyterHub on loopback, its two passwords, and the class view."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from machinery import started
from waiting import eventually

from labctl.learn.room import TEACHER, Room

pytestmark = pytest.mark.night

UP_S = 120


@pytest.fixture(scope="module")
def room(checkout: Path) -> Iterator[tuple[Room, str]]:
    """The room, and the address at which its JupyterHub answers."""
    pytest.importorskip("jupyterhub", reason="make setup-hub")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{address}/hub/health").status_code == 200
        except httpx.TransportError:
            return False

    with started(checkout, "hub", "up", "--trust-each-other", "--port", str(port)) as running:
        eventually(answers, UP_S)
        yield Room(checkout / ".labs" / "hub"), address
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=UP_S)
    room = Room(checkout / ".labs" / "hub")
    assert running.returncode == 130 and room.password in said and room.teacher_password in said


def log_in(address: str, name: str, password: str, to: str) -> int:
    """The status of the page that a browser ends at after the login."""
    with httpx.Client(base_url=address, follow_redirects=True, timeout=60) as client:
        client.get("/hub/login")
        form = {"username": name, "password": password, "_xsrf": client.cookies["_xsrf"]}
        return client.post("/hub/login", params={"next": to}, data=form).status_code


def test_a_learner_picks_a_name_and_only_the_teacher_sees_the_class(room: tuple[Room, str]) -> None:
    kept, address = room
    assert log_in(address, "ada", kept.password, "/hub/home") == 200
    assert log_in(address, TEACHER, kept.teacher_password, "/services/class/") == 200
    assert log_in(address, "ada", kept.password, "/services/class/") == 403
    assert log_in(address, "ada", "wrong", "/hub/home") == log_in(address, TEACHER, kept.password, "/hub/home") == 403
