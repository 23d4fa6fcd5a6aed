"""The faults that lab 02 survives, beyond those of every stack (tests/runtimes)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from checkout import ROOT
from machinery import labctl
from own_stack import STACK, leftovers, server_of, shown, state, up
from waiting import DEADLINE_S, eventually


def test_fault_9_a_wrong_datatype_reaches_the_person_in_tritons_words(own: Path, copied_templates: Path) -> None:
    path = copied_templates / "simple-gpt2" / "config.pbtxt"
    path.write_text(
        path.read_text().replace("input [", 'input [ { name: "extra" data_type: TYPE_INVALID dims: [ 1 ] },', 1)
    )
    done = up(own, "--templates", str(copied_templates), check=False)
    assert done.returncode == 1
    assert "extra" in done.stderr
    assert leftovers(own) == []


def test_a_reloaded_configuration_that_triton_refuses_is_told_and_the_former_one_serves(
    own: Path, copied_templates: Path
) -> None:
    up(own, "--templates", str(copied_templates))
    path = copied_templates / "simple-gpt2" / "config.pbtxt"
    path.write_text(
        path.read_text().replace("input [", 'input [ { name: "extra" data_type: TYPE_INVALID dims: [ 1 ] },', 1)
    )
    done = labctl("reload", STACK, root=own, check=False)
    assert done.returncode == 1
    assert "model input 'extra' must specify 'data_type'" in done.stderr
    assert "the version of simple-gpt2 that was loaded before serves on" in done.stderr
    assert labctl("infer", STACK, "-m", "simple-gpt2", "-p", "I have", "-o", "2", root=own).stdout.strip()


def test_fault_8_truncated_weights_are_refused_before_a_server_starts(own: Path) -> None:
    cache = own / "cache"
    env = {"LABS_CACHE": str(cache)}
    pull = [sys.executable, "-m", "labctl", "weights", "pull", "random:tiny-gpt2", "--runtime", "local"]
    path = Path(
        subprocess.run(
            pull, cwd=own, env={**os.environ, **env}, capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    with (path / "model.safetensors").open("r+b") as stream:
        stream.truncate(100)
    done = subprocess.run(
        [sys.executable, "-m", "labctl", "up", STACK, "--runtime", "local", "--set", "model=random:tiny-gpt2"],
        cwd=own,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert leftovers(own) == []


def test_fault_19_a_client_whose_server_stops_fails_and_averages_nothing(own: Path) -> None:
    up(own)
    bench = [
        sys.executable,
        "-m",
        "labctl",
        "bench",
        STACK,
        "--concurrency",
        "2",
        "--request-count",
        "100000",
        "--output-tokens",
        "200",
    ]
    first = subprocess.Popen(bench, cwd=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run_dir = own / ".labs" / STACK / "run"
    eventually(lambda: sum(p.stat().st_size for p in run_dir.glob("steps-iterative*")) > 20_000)
    server_of(own).kill()  # type: ignore[union-attr]
    out, err = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 1, err
    assert "tokens/s" not in out
    assert "Traceback" not in err
    labctl("down", STACK, root=own)
    assert leftovers(own) == []


def test_fault_20_a_model_whose_stub_is_killed_is_reported_and_the_other_serves_on(own: Path) -> None:
    model, other = "iterative-gpt2", "simple-gpt2"
    up(own)
    server = server_of(own)
    assert server
    (stub,) = [p for p in server.children() if model in " ".join(p.cmdline())]
    stub.kill()

    def told() -> tuple[str, str]:
        status = shown(own)
        return status["state"], next(row["state"] for row in status["models"] if row["name"] == model)

    eventually(lambda: told() == ("degraded", "UNAVAILABLE"))
    assert labctl("infer", STACK, "-m", other, "-p", "I have lived in", "-o", "3", root=own).stdout


def test_fault_18_a_thousand_cancelled_streams_leave_a_server_that_answers_right(own: Path) -> None:
    few_places = ("--set", "max_candidate_sequences=4", "--set", "max_sequence_idle_microseconds=3000000")
    ask = ("infer", STACK, "-m", "iterative-gpt2", "-p", "I have lived in", "-o", "8")
    leave = ROOT / "labs/02-iterative-scheduling/leave.py"
    for _ in range(3):
        up(own, *few_places)
        right = labctl(*ask, root=own).stdout
        subprocess.run([sys.executable, leave, shown(own)["endpoints"]["grpc"], "1000"], check=False)
        if server_of(own):
            break
        # Triton's gRPC front has a race between a response and its cancellation, mended after 2.51 (its issue 8034).
        assert "Signal (11) received" in labctl("logs", STACK, root=own).stdout
        labctl("down", STACK, root=own)

    def answers() -> str:
        done = labctl(*ask, root=own, check=False)
        return done.stdout if done.returncode == 0 else ""

    # Some of the cancelled ones hold their places until the idle limit: the answer may be late, but it comes.
    assert eventually(answers) == right
    eventually(lambda: state(own) == "ready")
