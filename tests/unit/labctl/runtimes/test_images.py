"""`labctl images`: old tags are seen and pruned, what is in use stays, nobody else's image is touched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compose_view
import docker.errors
import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error
from requests import Response

from labctl.cli.main import cli
from labctl.listener import Silent
from labctl.runtimes import docker_engine, images
from labctl.runtimes.docker_cli import DockerCall
from labctl.runtimes.images import build_missing_images
from labctl.workspace import Workspace

OLD, BUSY = "labs-server:cpu-0123456789ab", "labs-client:0123456789ab"


class Engine:
    """An engine with the labs' images; one of them is in use by a container."""

    def __init__(self) -> None:
        self.images = self
        self.tags = [images.server_image(Workspace(ROOT, ROOT), "cpu"), OLD, BUSY]
        self.asked: dict[str, Any] = {}

    def list(self, filters: dict[str, Any]) -> list[Any]:
        self.asked = filters
        attributes = {"Size": 10**9, "Created": "2026-01-02T03:04:05.123456789Z"}
        return [SimpleNamespace(tags=[tag], short_id="", attrs=attributes) for tag in self.tags]

    def remove(self, name: str) -> None:
        if name == BUSY:
            response = Response()
            response.status_code = 409
            raise docker.errors.APIError("in use", response=response)
        self.tags.remove(name)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(docker_engine, "engine", lambda: fake)
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    return fake


def test_the_list_says_which_images_this_checkout_uses(engine: Engine) -> None:
    shown = CliRunner().invoke(cli, ["images", "list"], catch_exceptions=False).stdout.splitlines()
    assert engine.asked == {"label": "labs.image"}
    used = {line.split()[0]: line.endswith("in use") for line in shown if line.startswith("labs-")}
    assert used == {tag: tag not in (OLD, BUSY) for tag in engine.tags}


def test_old_images_are_pruned_and_one_that_a_container_uses_is_named(engine: Engine) -> None:
    done = CliRunner().invoke(cli, ["images", "prune", "--old"])
    assert done.stdout == f"removed: {OLD}\n"
    is_lab_error(done.exception, "image-in-use", BUSY)
    assert len(engine.tags) == 2


@pytest.mark.parametrize("arguments", [[], ["--all", "--old"], ["--all", OLD]])
def test_what_to_prune_is_said_in_one_way(engine: Engine, arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["images", "prune", *arguments]).exit_code == 2
    assert len(engine.tags) == 3


def test_an_image_has_another_name_as_soon_as_one_of_its_sources_is_another(tmp_path: Path) -> None:
    for file in (*images.CLIENT_FILES, "src/package/part.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("one")
    workspace, part = Workspace(tmp_path, tmp_path), tmp_path / "src" / "package" / "part.py"

    def name() -> str:
        images._digest.cache_clear()  # as in another process
        return images.client_image(workspace)

    first = name()
    assert name() == first
    for path in (part, part.with_name("more.py"), tmp_path / "pyproject.toml"):
        before = path.read_text() if path.exists() else None
        path.write_text("two")
        assert name() != first
        path.unlink() if before is None else path.write_text(before)
        assert name() == first


def test_an_image_that_another_command_built_meanwhile_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second build of the same sources would take the name from the first image, which is then "old"."""
    there: set[str] = set()
    monkeypatch.setattr(images, "exists", lambda name: name in there)
    builds = {"labs-server:cpu-1": DockerCall(lambda docker: docker.compose.build(["no-such"], stream_logs=True))}
    with lab_error("image-build-failed"):
        build_missing_images(Silent(), builds, "")
    there.add("labs-server:cpu-1")
    build_missing_images(Silent(), builds, "")


@pytest.mark.parametrize("name", ["LABS_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_build_by_hand_takes_the_ca_bundle_that_labctl_would_take(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("LABS_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(other, raising=False)
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("")
    monkeypatch.setenv(name, str(bundle))
    found = compose_view.document([ROOT / "compose.yaml"])
    assert found["secrets"]["ca"]["file"] == images.build_environment()["LABS_CA_BUNDLE"] == str(bundle)
