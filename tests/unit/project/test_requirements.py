"""What stands beside the code agrees with it: pyproject.toml and the lock in requirements/, NOTICE, the changelog."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labctl.cli.main import cli

FILES = sorted(path.name for path in (ROOT / "requirements").glob("*.txt"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: str = PROJECT["project"]["version"]
OWN = sorted(path.parent.name for path in (ROOT / "requirements").glob("*/pyproject.toml"))
CODE = [path for folder in ("src", "labs", "model_repos") for path in (ROOT / folder).rglob("*.py")]
# Modules of Triton's python backend and of NVIDIA's images, which no package index has, and a part of vLLM's own.
OF_SERVERS = {"triton_python_backend_utils", "tensorrt_llm", "cupy", "llguidance"}
# What openvino-genai and JupyterHub, JupyterLab are made of, in their own versions.
WITHIN = {"openvino", "tornado", "traitlets", "jupyterlab_server"}


def requirements(project: dict[str, Any] = PROJECT) -> list[Requirement]:
    """Everything that a pyproject.toml asks for."""
    own = project["project"]
    groups = [*own.get("optional-dependencies", {}).values(), *project.get("dependency-groups", {}).values()]
    return [Requirement(text) for found in (own["dependencies"], *groups) for text in found]


def pins(name: str, python: str = "3.11", machine: str = "x86_64") -> dict[str, str]:
    """Package to version, as one Python on one machine reads the file."""
    where = {"python_version": python, "python_full_version": python, "platform_machine": machine}
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if not line.startswith(("#", " ")) and line:
            pin = Requirement(line.removesuffix("\\").strip())
            if pin.marker is None or pin.marker.evaluate(where):
                assert canonicalize_name(pin.name) not in found, f"{name} has two of {pin.name} for {where}"
                found[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return found


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_every_requirement_is_locked_to_a_version_that_it_allows(python: str, machine: str) -> None:
    files = ("site.txt", "teach.txt", "hub.txt", "labs.txt", "torch.txt", "build.txt")
    locked = {package: version for name in files for package, version in pins(name, python, machine).items()}
    for requirement in requirements():
        if requirement.marker and not requirement.marker.evaluate({"platform_machine": machine}):
            continue
        version = locked.get(canonicalize_name(requirement.name))
        assert version and requirement.specifier.contains(version), f"{requirement}: locked is {version}"


@pytest.mark.parametrize("name", OWN)
def test_every_requirement_of_a_resolution_of_its_own_is_locked_to_a_version_that_it_allows(name: str) -> None:
    project = tomllib.loads((ROOT / "requirements" / name / "pyproject.toml").read_text())
    locked = pins("torch.txt", "3.12") | pins(f"{name}.txt", "3.12")
    for requirement in requirements(project):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


OLDER = {"vllm-oldest.txt", "vllm-gpu-cuda12.txt"}  # vLLM's two resolutions with an older release
PARTS = {*FILES} - {"labs.txt", "site.txt", "teach.txt", "hub.txt", *OLDER, *(f"{name}.txt" for name in OWN)}


@pytest.mark.parametrize("name", sorted(PARTS))
def test_the_images_have_the_versions_of_make_setup(name: str) -> None:
    everything = {**pins("labs.txt"), **pins("torch.txt"), **pins("build.txt")}
    assert {package: everything.get(package) for package in pins(name)} == pins(name)


def test_what_a_room_adds_to_make_setup_leaves_its_versions_as_they_are() -> None:
    everything, room = {**pins("labs.txt"), **pins("torch.txt"), **pins("build.txt")}, pins("hub.txt")
    assert {name: version for name, version in room.items() if everything.get(name, version) != version} == {}


@pytest.mark.parametrize("name", FILES)
def test_every_version_has_a_hash_but_pytorchs_and_no_file_names_an_index(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    pins = re.split(r"\n(?=[a-z0-9])", text)[1:]
    assert {"--hash=sha256:" in pin for pin in pins} == {name != "torch.txt"}
    assert "://" not in text and "--index" not in text and "--find-links" not in text


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_every_third_party_module_that_is_imported_is_declared() -> None:
    declared = {canonicalize_name(requirement.name) for requirement in requirements()}
    own = {path.name for path in (ROOT / "src").iterdir()}
    own |= {name for path in CODE for name in (path.stem, path.parent.name)}
    where = {module: path.relative_to(ROOT) for path in CODE for module in imported(path)}
    packages = metadata.packages_distributions()
    undeclared = [
        f"{where[module]}: {module}"
        for module in sorted(where.keys() - sys.stdlib_module_names - own - OF_SERVERS - WITHIN)
        if not declared & {canonicalize_name(name) for name in packages.get(module, [module])}
    ]
    assert undeclared == []


def test_notice_names_every_package_that_the_project_asks_for() -> None:
    named = {canonicalize_name(word) for word in re.findall(r"[\w-]+", (ROOT / "NOTICE").read_text())}
    assert {canonicalize_name(requirement.name) for requirement in requirements()} - named == set()


def test_the_newest_release_of_the_changelog_is_the_version_that_labctl_says() -> None:
    released = re.findall(
        r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    shown = CliRunner().invoke(cli, ["--version"]).stdout
    assert released[0] == VERSION == metadata.version("triton-serving-labs")
    assert shown == f"labctl, version {VERSION}\n"


def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION


def test_whatever_is_started_by_hand_listens_on_loopback_alone() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    triton, envoy = (services[name]["ports"] for name in ("triton", "envoy"))
    assert all(port.startswith("127.0.0.1:") for port in (*triton, *envoy))
