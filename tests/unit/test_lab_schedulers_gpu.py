"""Lab 06 on the gpu profile: its phases, and what the engine lacks refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lab_errors import is_lab_error
from machinery import ROOT

from labctl.cli.main import cli


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--profile", "gpu"])


@pytest.mark.parametrize(
    ("asked", "left_out"),
    [
        (("--profile", "gpu"), 1),  # vLLM; the one with a small cache is OpenVINO's
        (("--profile", "gpu", "--set", "engine=transformers"), 3),
        (("--profile", "cpu"), 0),
        (("--profile", "cpu", "--set", "speculation=draft"), 3),
    ],
)
def test_the_phases_about_shared_beginnings_run_wherever_an_engine_can_share_them(
    asked: tuple[str, ...], left_out: int
) -> None:
    done = CliRunner().invoke(cli, ["run", "schedulers", "--dry-run", *asked])
    assert done.exit_code == 0, done.output
    notes = [line for line in done.output.splitlines() if "phase prefix-" in line and "left out" in line]
    assert len(notes) == left_out, notes


def test_every_phase_of_tensorrt_llm_has_a_server_and_an_engine_of_its_own() -> None:
    done = invoked("run", "schedulers", "--dry-run", "--set", "engine=tensorrt-llm")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("# tritonserver with") == done.stdout.count("# the client of phase") == 5
    for words in ("--max_num_tokens 8192", "--max_num_tokens 256", "--use_paged_context_fmha enable"):
        assert words in done.stdout, words


@pytest.mark.parametrize("setting", ["speculation=draft", "speculation=prompt_lookup", "scheduling=fair"])
def test_what_needs_engines_that_labctl_does_not_build_is_refused_by_name(setting: str) -> None:
    error = invoked("up", "modern", "--set", "engine=tensorrt-llm", "--set", setting, "--dry-run").exception
    is_lab_error(error, "settings-unusable", setting.partition("=")[0])
