"""AIPerf against a real stack, by the command of docs/guide/load-tools.md: another project's tool measures ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from environments import OURS, environment
from lab_server import LabServer

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("iterative")]
AIPERF = "aiperf==0.13.0"


def test_aiperf_measures_a_stack_through_the_openai_api(
    lab_server: Callable[..., LabServer], doors: Callable[..., openai.OpenAI], cache: Path, tmp_path: Path
) -> None:
    python = environment(cache, "aiperf", OURS, AIPERF)
    url = str(doors("iterative").base_url).removesuffix("/v1/")
    tokenizer = lab_server("iterative").settings["tokenizer_dir"]
    command = [python, "-m", "aiperf", "profile", "--model", "iterative-gpt2", "--url", url]
    command += ["--endpoint-type", "completions", "--streaming", "--tokenizer", tokenizer]
    command += ["--isl", "12", "--osl", "16", "--extra-inputs", "ignore_eos:true"]
    command += ["--concurrency", "4", "--request-count", "12", "--ui-type", "none"]
    command += ["--output-artifact-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == 12
    assert found["output_sequence_length"]["avg"] == pytest.approx(16, rel=0.1)
    assert 0 < found["time_to_first_token"]["avg"] <= found["request_latency"]["avg"]
