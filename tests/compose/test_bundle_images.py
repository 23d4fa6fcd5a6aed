"""A bundle with images, from the engine that built them to one that never had them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from checkout import ROOT
from machinery import labctl, runtime

from labctl.bundle import pack
from labctl.labs.bundle import create
from labctl.listener import Silent
from labctl.runtimes import images
from labctl.stack.session import Session
from labctl.workspace import Workspace

pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(not os.environ.get("LABS_TEST_BUNDLE"), reason="takes minutes and 8 GB: set LABS_TEST_BUNDLE=1"),
]


@pytest.fixture
def sources(own: Path, engine: docker.DockerClient) -> Iterator[Path]:
    """A checkout whose images are nobody else's, since one line of it is its own; they go with it."""
    with (own / "src/labserve/__init__.py").open("a") as file:
        file.write(f"# {own}\n")
    (own / ".gitignore").write_text("__pycache__\n.labs\n.venv\n")
    (own / "scripts").symlink_to(ROOT / "scripts")
    names = images.all_images(Workspace(own, own / "cache"), "cpu")
    try:
        yield own
    finally:
        for name in {tag for image in engine.images.list() for tag in image.tags} & {*names}:
            engine.images.remove(name, force=True)


def test_the_images_of_a_bundle_serve_behind_envoy_where_nothing_can_be_built(
    sources: Path, engine: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_ROOT", str(sources))
    monkeypatch.setattr(pack, "_wheels", lambda workspace, stage, listener: (stage / "wheels").mkdir())
    session, bundle, there = Session.open(Silent()), tmp_path / "b.tar", tmp_path / "there"
    size = create(session, [session.catalog.lab("faults")], bundle, with_images=True)
    assert 0.5 < pack.estimate(session.workspace, [], with_images=True).images / (size + 1) < 2, size
    names = images.all_images(session.workspace, "cpu")
    for name in names:
        engine.images.remove(name)
    there.mkdir()
    subprocess.run(["tar", "-xf", str(bundle)], cwd=there, check=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "make").write_text("#!/bin/sh\n")
    (tools / "make").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "LABS_CACHE": str(tmp_path / "their-cache"),
        "LABS_PYTHON": sys.executable,
    }
    done = subprocess.run(["./install"], cwd=there, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(images.exists(name) for name in names), done.stderr
    try:
        asked = ("up", "quick", "--runtime", "compose", "--ports", "auto")
        up = labctl(*asked, root=there, LABS_ROOT=str(there))
        assert "image labs-" not in up.stderr, "an image was built again"
        assert {names[0], names[1]} <= {tag for c in engine.containers.list() if c.image for tag in c.image.tags}
    finally:
        labctl("down", "--all", root=there, check=False, LABS_ROOT=str(there))
        assert runtime(there).stacks() == set()
