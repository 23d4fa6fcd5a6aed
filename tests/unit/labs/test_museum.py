"""The museum without a server: its exhibits are complete, its verdicts follow from what was found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import is_lab_error, lab_error

from labctl.cli.main import cli
from labctl.museum import visit
from labctl.museum.exhibit import Exhibit, find_exhibit, find_exhibits
from labctl.runtimes.processes import Command, run_together
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.exhibit import CannotTell, ExhibitServer, Observation

HERE = Workspace(ROOT, ROOT)
EXHIBITS = find_exhibits(HERE)
HEADINGS = ["Symptom", "Guess first", "Cause", "What the maintainers say", "Work-around"]
SERVER = ExhibitServer("a:1", "a:2", "a:3", False, lambda: "", lambda: "")
each = pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)


@each
def test_a_page_has_its_parts_and_hides_the_answer(exhibit: Exhibit) -> None:
    page = (exhibit.folder / "README.md").read_text()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == HEADINGS
    assert page.startswith(f"# {exhibit.number}: {exhibit.manifest.title}\n")
    guess = page.partition("## Guess first")[2].partition("## Cause")[0]
    assert "<details><summary>Answer</summary>" in guess
    if upstream := exhibit.manifest.upstream:
        kind = "issues" if upstream.kind == "issue" else "pull"
        assert f"/triton-inference-server/{upstream.repository}/{kind}/{upstream.number})" in page


@each
def test_each_served_model_has_a_program_unless_it_is_an_ensemble(exhibit: Exhibit, tmp_path: Path) -> None:
    for workaround in (False, True):
        repository = tmp_path / f"repository-{workaround}"
        for model in visit.lay_out_exhibit(exhibit, repository, workaround):
            is_python = 'backend: "python"' in (repository / model / "config.pbtxt").read_text()
            assert (repository / model / "1" / "model.py").is_file() == is_python


def test_an_exhibit_answers_to_its_number_its_short_number_and_its_name() -> None:
    assert {find_exhibit(EXHIBITS, word).name for word in ("server#8870", "8870", "server-8870")} == {"server-8870"}
    with lab_error("exhibit-unknown"):
        find_exhibit(EXHIBITS, "server#1")


def test_a_broken_manifest_is_named_with_its_key(tmp_path: Path) -> None:
    broken = tmp_path / "labs" / "extras" / "museum" / "x"
    broken.mkdir(parents=True)
    (broken / "exhibit.yaml").write_text("wing: cellar\n")
    with lab_error("museum-broken") as refused:
        find_exhibits(Workspace(tmp_path, tmp_path))
    assert any(line.startswith("x: wing: ") for line in refused.value.details)


@pytest.mark.parametrize(
    ("found", "workaround", "verdict"),
    [
        (Observation(True, "m"), False, "reproduces"),
        (Observation(False, "m"), False, "mended"),
        (Observation(True, "m"), True, "fails"),
        (Observation(False, "m"), True, "passes"),
        (CannotTell("m"), False, "cannot tell here"),
        (CannotTell("m"), True, "cannot tell here"),
        (LabError("m", code="any"), False, "cannot tell here"),
        (ConnectionRefusedError("m"), False, "cannot tell here"),
    ],
)
def test_the_verdict_follows_from_what_was_found(
    found: Observation | Exception, workaround: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def serve(*_: Any) -> Iterator[ExhibitServer]:
        yield dataclasses.replace(SERVER, workaround=workaround)

    def program(server: ExhibitServer) -> Observation:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(visit, "_serve", serve)
    monkeypatch.setattr(visit, "_program", lambda exhibit: program)
    seen = visit.reproduce_exhibit(HERE, EXHIBITS[0], workaround)
    assert (seen.verdict, seen.measured) == (verdict, "m")


def test_a_server_that_ends_while_something_is_awaited_gives_no_verdict() -> None:
    with pytest.raises(CannotTell, match="the server ended \\(killed by SIGABRT\\) before an answer"):
        dataclasses.replace(SERVER, ended=lambda: "killed by SIGABRT").wait(lambda: False, "an answer")


def test_the_list_fits_on_80_columns_and_has_every_number() -> None:
    shown = CliRunner().invoke(cli, ["reproduce", "list"], env={"LABS_ROOT": str(ROOT)}, catch_exceptions=False)
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert all(exhibit.number in shown.stdout for exhibit in EXHIBITS)
    listed = CliRunner().invoke(cli, ["reproduce", "list", "--json"], env={"LABS_ROOT": str(ROOT)})
    assert [row["number"] for row in json.loads(listed.stdout)] == [exhibit.number for exhibit in EXHIBITS]


def test_what_ends_its_server_runs_only_with_the_flag() -> None:
    refused = CliRunner().invoke(cli, ["reproduce", "server#8267"], env={"LABS_ROOT": str(ROOT)})
    is_lab_error(refused.exception, "exhibit-kills", "labctl reproduce server#8267 --kills")


def test_commands_that_run_together_are_each_reported_and_a_late_one_is_ended() -> None:
    quick = Command([sys.executable, "-c", "print('done')"])
    wrong = Command([sys.executable, "-c", "import sys; sys.exit('no such thing')"])
    late = Command([sys.executable, "-c", "import time; time.sleep(600)"])
    began = time.monotonic()
    ended = {index: (out, how) for index, out, how in run_together([quick, wrong, late], 3, 5)}
    assert ended[0] == ("done\n", "exit status 0")
    assert ended[1] == ("", "exit status 1: no such thing")
    assert ended[2] == ("", "took longer than 5 s")
    assert time.monotonic() - began < 60
