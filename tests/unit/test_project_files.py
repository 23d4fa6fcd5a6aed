"""What strangers find beside the code agrees with the code."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labctl.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: str = PROJECT["project"]["version"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_newest_release_of_the_changelog_is_the_version_that_labctl_says() -> None:
    released = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", text("CHANGELOG.md"), re.MULTILINE)
    shown = CliRunner().invoke(cli, ["--version"]).stdout
    assert released[0] == VERSION == metadata.version("triton-serving-labs")
    assert shown == f"labctl, version {VERSION}\n"


def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load(text("CITATION.cff"))["version"] == VERSION


def test_notice_names_every_package_that_the_project_asks_for() -> None:
    own = PROJECT["project"]
    lists = [own["dependencies"], *own["optional-dependencies"].values(), *PROJECT["dependency-groups"].values()]
    named = {canonicalize_name(word) for word in re.findall(r"[\w-]+", text("NOTICE"))}
    asked = {canonicalize_name(Requirement(line).name) for found in lists for line in found}
    assert asked - named == set()


def test_whatever_is_started_by_hand_listens_on_loopback_alone() -> None:
    services = yaml.safe_load(text("compose.yaml"))["services"]
    triton, envoy = (services[name]["ports"] for name in ("triton", "envoy"))
    assert all(port.startswith("127.0.0.1:") for port in (*triton, *envoy))
