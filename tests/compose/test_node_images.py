"""``labctl images build``: one command makes every image that a stack's manifests name, and prints names alone."""

from __future__ import annotations

import re
from pathlib import Path

import docker
import pytest
from machinery import copy_of_the_checkout, labctl

from labctl.runtimes.images import LABEL

pytestmark = pytest.mark.night


def images_of(folder: Path) -> set[str]:
    """Every image that the pods there run."""
    names = re.findall(r"newName: (\S+)\n  newTag: '?([^'\n]+)", (folder / "kustomization.yaml").read_text())
    return {":".join(name) for name in names}


def test_every_image_that_the_manifests_name_is_there_after_one_command(
    engine: docker.DockerClient, snapshot: Path, tmp_path: Path
) -> None:
    root = copy_of_the_checkout(tmp_path / "checkout", snapshot)
    built = labctl("images", "build", "iterative", root=root, timeout=900)
    labctl("render", "iterative", "--target", "kubernetes", "--output", str(tmp_path / "deploy"), root=root)
    named = images_of(tmp_path / "deploy")
    assert named and named <= set(built.stdout.split()), "stdout is for `kind load docker-image $(...)`"
    for name in built.stdout.split():
        assert engine.images.get(name).labels[LABEL], "`labctl images list` finds it again"
    again = labctl("images", "build", "iterative", root=root)
    assert (again.stdout, again.stderr) == (built.stdout, ""), "nothing is built twice"
