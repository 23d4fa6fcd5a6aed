"""What a shell completes at Tab: the names of this checkout, without an import of what computes or asks a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from labctl.cli.main import cli

HEAVY = ("numpy", "grpc", "tritonclient", "torch", "matplotlib", "gradio", "docker", "python_on_whales", "starlette")


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    items = ShellComplete(cli, {}, "labctl", "_LABCTL_COMPLETE").get_completions(before, incomplete)
    return [str(item.value) for item in items]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["up", "in"], ["inflight-batching"]),
        (["status", "two-sc"], ["two-schedulers"]),
        (["run", "bat"], ["batching"]),
        (["list", "static"], ["static-batching"]),
        (["list", "iter"], ["iterative"]),
        (["learn", "cod"], ["codegen"]),
        (["watch", "mod"], ["modern"]),
        (["up", "iterative", "--set", "kv_c"], ["kv_cache="]),
        (["run", "iterative", "--set", "strategy"], []),
        (["infer", "iterative", "-m", ""], ["simple-gpt2", "iterative-gpt2"]),
        (["clock", "static-batching", "pause", "-m", "tensorrt"], ["tensorrt_llm"]),
        (["exercise", "check", "02"], ["02a", "02b", "02c", "02d", "02e", "02f"]),
    ],
)
def test_names_are_completed(words: list[str], names: list[str]) -> None:
    assert completed(*words) == names


def test_a_result_is_completed_where_no_stack_begins_so() -> None:
    (item,) = ShellComplete(cli, {}, "labctl", "_LABCTL_COMPLETE").get_completions(["explain"], "results/")
    assert item.type == "file"


def test_outside_a_checkout_nothing_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_ROOT", str(tmp_path))
    assert completed("up", "") == []


@pytest.mark.parametrize("line", ["up ", "infer iterative -m ", "exercise check ", "bench ", "explain ", "learn "])
def test_a_completion_imports_nothing_heavy(line: str) -> None:
    script = (
        "import sys\nfrom labctl.cli import main\n"
        "try:\n    main.main([])\n"
        f"finally:\n    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    env = {
        "COMP_WORDS": f"labctl {line}",
        "COMP_CWORD": str(len(line.split()) + 1),
        "_LABCTL_COMPLETE": "bash_complete",
    }
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]" and "plain," in done.stdout
