"""run-example: a script of upstream's examples is found in the first folder that has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from machinery import ROOT

SCRIPT = "models/core/llama/convert_checkpoint.py"


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["sh", str(ROOT / "docker/run-example.sh"), *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True)


def test_the_folder_that_has_the_script_is_taken_and_its_arguments_stay_whole(tmp_path: Path) -> None:
    here = tmp_path / "b" / SCRIPT
    here.parent.mkdir(parents=True)
    here.write_text("import sys; print(sys.argv[1:])")
    done = ran(f"{tmp_path}/a:{tmp_path}/b", SCRIPT, "--model_dir", "/my weights")
    assert done.stdout == "['--model_dir', '/my weights']\n"


def test_a_script_that_is_nowhere_is_an_error_that_names_every_folder(tmp_path: Path) -> None:
    done = ran("/app/examples:/app/tensorrt_llm/examples", SCRIPT)
    assert done.returncode == 1
    assert done.stderr.startswith(f"TensorRT-LLM's {SCRIPT} is in none of: /app/examples:/app/tensorrt_llm/examples")
