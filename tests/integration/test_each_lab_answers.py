"""One real answer from each lab, from the servers of other tests: with the unit tests, what `make test` runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from each_lab import LABS, PROMPT
from lab_server import LabServer

from labctl.catalog import load_catalog
from labctl.cli.main import cli
from labctl.workspace import Workspace
from labkit.client.sequences import SequenceClient


def test_every_lab_of_the_catalogue_is_asked() -> None:
    assert {lab.short for lab in load_catalog(Workspace.find(Path(__file__))).labs} == set(LABS)


@pytest.mark.parametrize(
    "lab", [pytest.param(lab, marks=pytest.mark.xdist_group(row[-1])) for lab, row in LABS.items()]
)
def test_a_lab_answers(
    lab: str, lab_server: Callable[..., LabServer], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, model, settings, _ = LABS[lab]
    server = lab_server(stack, **settings)
    if not model:  # a sequence is not one request
        with SequenceClient(server.http, "ensemble_pipeline", "http", server.settings["correlation_id"]) as client:
            assert client.ask(PROMPT, 7, start=True, end=True)
        return
    monkeypatch.setenv("LABS_ROOT", str(checkout))
    argv = ["infer", stack, "-m", model, "-p", PROMPT, "-o", "4"]
    said = CliRunner().invoke(cli, argv, catch_exceptions=False).stdout
    assert said.startswith(PROMPT)
    assert len(said.strip()) > len(PROMPT)
