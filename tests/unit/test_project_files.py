"""What strangers find beside the code agrees with the code."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import __main__ as bench
from labctl.cli.commands import COMMANDS
from labctl.cli.main import cli
from labctl.workspace import Workspace

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


def test_ci_runs_what_a_new_machine_must_pass_and_lint() -> None:
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in runs and "make lint" in runs


def test_ci_lints_on_every_python_that_is_supported() -> None:
    job = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]["lint"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12"]
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.13"


def test_whatever_is_started_by_hand_listens_on_loopback_alone() -> None:
    services = yaml.safe_load(text("compose.yaml"))["services"]
    triton, envoy = (services[name]["ports"] for name in ("triton", "envoy"))
    assert all(port.startswith("127.0.0.1:") for port in (*triton, *envoy))


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.name)
def test_an_issue_form_has_what_github_asks_of_one(form: Path) -> None:
    found = yaml.safe_load(form.read_text())
    assert found["name"] and found["description"]
    assert all(field["type"] in ("input", "textarea", "dropdown", "checkboxes", "markdown") for field in found["body"])
    assert len({field["id"] for field in found["body"]}) == len(found["body"])


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "README.md", "docs/guide/troubleshooting.md", "docs/operate/compose.md"]
)
def test_every_make_target_and_command_that_a_page_names_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", text("Makefile"), re.MULTILINE))
    code = "\n".join(re.findall(r"`[^`\n]+`|^ {4}.+$|^(?:make|labctl) .+$", text(page), re.MULTILINE))
    named = set(re.findall(r"(?<![\w/.-])make ([a-z][a-z-]*)", code))
    assert {name for name in named if not name.startswith("lab-")} - targets == set()  # lab-*: one pattern rule
    assert set(re.findall(r"(?<![\w/.-])labctl ([a-z]+)", code)) - COMMANDS.keys() == set()


@pytest.mark.parametrize(
    "page",
    sorted(
        path
        for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md", "labs/*/README.md", "museum/*/*.md")
        for path in ROOT.glob(pattern)
    ),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_bench_without_a_name_runs_the_yardsticks_and_not_the_long_searches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(bench, "EVERY", {name: lambda _, name=name: ran.append(name) for name in bench.EVERY})
    monkeypatch.setattr(Workspace, "find", classmethod(lambda cls: Workspace(tmp_path, tmp_path)))
    for argv, wanted in (([], [*bench.YARDSTICKS]), (["kills"], ["kills"])):
        ran.clear()
        monkeypatch.setattr("sys.argv", ["benchmarks", *argv])
        bench.main()
        assert ran == wanted
    assert not {"door-fuzz", "kills"} & bench.YARDSTICKS.keys()


def test_no_two_test_files_have_one_name() -> None:
    # pytest imports them by their bare names: the second of a name stops the whole run.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
