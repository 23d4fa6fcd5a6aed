"""What docs/operate/gpu.md names for each release: the labs' dry runs on the gpu profile."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from machinery import ROOT

from labbuild.releases import table
from labctl.cli.main import cli

RELEASES = [it.name for it in table().values() if it.steps]
COMMANDS = {
    "run llama": "llama-hf-vs-trtllm/client.py",
    "run batching": "batching-policies/client.py",
    "run codegen --set engine=tensorrt-llm": "labserve.codegen.as_gptj",
    "up static-batching": "launch",
}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))


def shown(command: str, release: str) -> str:
    arguments = [*command.split(), "--profile", "gpu", "--release", release, "--dry-run"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_release_has_a_dry_run_of_every_lab_with_its_own_image_and_builder(command: str, release: str) -> None:
    text = shown(command, release)
    it = table()[release]
    assert it.image in text
    assert ("build.py" if it.builder == "build.py" else "trtllm-build") in text
    if command != "up static-batching":
        assert COMMANDS[command] in text


def test_lab_05_on_0_5_0_builds_for_the_published_batch_and_says_so() -> None:
    text = shown("run batching", "0.5.0")
    assert "--max_batch_size 8" in text
    assert "the published setting" in text
    assert "--max_num_tokens 16384" in text  # V1: 8 prompts of 2,048 tokens in one step
    assert "--max_num_tokens 8192" in text


def test_codegen_on_0_5_0_shows_the_rotary_dimension_of_its_weights() -> None:
    assert "--rotary_dim 16" in shown("run codegen --set engine=tensorrt-llm", "0.5.0")
    text = shown("run codegen --set engine=tensorrt-llm --set model=random:codegen-350m", "0.5.0")
    assert "--rotary_dim 32" in text
    text = shown(
        "run codegen --set engine=tensorrt-llm --set model=hub:a/b@0123456789012345678901234567890123456789", "0.5.0"
    )
    assert "read from config.json" in text
