"""The faults that a stack on the local runtime survives, each injected as it happens to people."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import labctl
from gpt2_streams import Stream
from own_stack import DEADLINE_S, STACK, eventually, leftovers, server_of, shown, start, state, up


def test_a_second_up_of_the_same_stack_fails_at_once_and_names_the_first(own: Path) -> None:
    first = start(own, "up", STACK)
    try:
        eventually(lambda: server_of(own))
        began = time.monotonic()
        second = labctl("up", STACK, "--runtime", "local", root=own, check=False)
        assert time.monotonic() - began < 10
        assert second.returncode == 1
        assert f"(pid {first.pid})" in second.stderr
        assert first.wait(DEADLINE_S) == 0
    finally:
        first.kill()
        first.communicate()


def test_kill_9_of_labctl_in_mid_up_leaves_a_stack_that_down_finds(own: Path) -> None:
    first = start(own, "up", STACK)
    eventually(lambda: server_of(own))
    first.kill()
    first.communicate()
    (own / ".labs" / STACK / "state.json").unlink(missing_ok=True)
    again = labctl("up", STACK, "--runtime", "local", root=own, check=False)
    assert again.returncode == 0 or "is up but not ready" in again.stderr
    labctl("down", STACK, root=own)
    assert leftovers(own) == []


def test_kill_9_of_a_run_takes_its_server_along(own: Path) -> None:
    first = start(own, "run", STACK, "--quick")
    eventually(lambda: server_of(own))
    first.kill()
    first.communicate()
    eventually(lambda: server_of(own) is None)
    labctl("down", "--all", root=own)
    assert leftovers(own) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_tears_down_and_says_how_it_ended(
    own: Path, number: signal.Signals, status: int
) -> None:
    first = start(own, "run", STACK, "--quick")
    eventually(lambda: server_of(own))
    os.killpg(first.pid, number)
    _, err = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == status, err
    assert "Traceback" not in err
    assert leftovers(own) == []


def test_a_second_ctrl_c_does_not_stop_the_clean_up(own: Path) -> None:
    first = start(own, "run", STACK, "--quick")
    eventually(lambda: server_of(own))
    os.killpg(first.pid, signal.SIGINT)
    eventually(lambda: server_of(own) is None or first.poll() is not None)
    if first.poll() is None:
        os.killpg(first.pid, signal.SIGINT)
    _, err = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 130, err
    assert "Traceback" not in err
    assert leftovers(own) == []


def test_ctrl_c_during_up_names_what_is_still_there(own: Path) -> None:
    first = start(own, "up", STACK)
    eventually(lambda: server_of(own))
    os.killpg(first.pid, signal.SIGINT)
    _, err = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 130, err
    assert f"labctl down {STACK}" in err
    labctl("down", STACK, root=own)
    assert leftovers(own) == []


def test_sigterm_during_up_leaves_no_server(own: Path) -> None:
    first = start(own, "up", STACK)
    eventually(lambda: server_of(own))
    first.terminate()
    _, err = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 143, err
    assert leftovers(own) == []


def test_a_taken_port_is_told_before_anything_is_made(own: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = labctl("up", STACK, "--runtime", "local", "--ports", f"{port},1201,1202", root=own, check=False)
    assert done.returncode == 1
    assert f"HTTP port {port}" in done.stderr
    assert "--ports auto" in done.stderr
    assert not (own / ".labs" / STACK / "repository").exists()


def test_a_server_that_is_killed_while_it_loads_ends_the_wait_at_once(own: Path) -> None:
    first = start(own, "up", STACK)
    server = eventually(lambda: server_of(own))
    server.kill()
    _, err = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 1
    assert "killed by SIGKILL" in err
    assert leftovers(own) == []


def test_a_server_that_dies_later_is_told_by_status(own: Path) -> None:
    up(own)
    server_of(own).kill()  # type: ignore[union-attr]
    eventually(lambda: server_of(own) is None)
    assert state(own) == "failed"
    labctl("down", STACK, root=own)
    assert state(own) == "absent"
    assert leftovers(own) == []


def test_a_model_that_cannot_load_fails_up_with_tritons_reason(own: Path, copied_templates: Path) -> None:
    (copied_templates / "simple-gpt2" / "1" / "model.py").write_text("raise RuntimeError('no luck today')\n")
    done = up(own, "--templates", str(copied_templates), check=False)
    assert done.returncode == 1
    assert "Triton could not load simple-gpt2" in done.stderr
    assert "no luck today" in done.stderr
    assert leftovers(own) == []


def test_a_wrong_datatype_reaches_the_person_in_tritons_words(own: Path, copied_templates: Path) -> None:
    path = copied_templates / "simple-gpt2" / "config.pbtxt"
    path.write_text(
        path.read_text().replace("input [", 'input [ { name: "extra" data_type: TYPE_INVALID dims: [ 1 ] },', 1)
    )
    done = up(own, "--templates", str(copied_templates), check=False)
    assert done.returncode == 1
    assert "extra" in done.stderr
    assert leftovers(own) == []


SLOW = """\
    def initialize(self, args):
        import time
        time.sleep({0})
        self.begin(args)

    def begin("""


def slow_down(templates: Path, seconds: float) -> None:
    """Make simple-gpt2 take so many seconds longer to load."""
    path = templates / "simple-gpt2" / "1" / "model.py"
    path.write_text(path.read_text().replace("    def initialize(", SLOW.format(seconds), 1))


def test_a_model_that_loads_slowly_is_waited_for_with_progress(own: Path, copied_templates: Path) -> None:
    slow_down(copied_templates, 5)
    done = up(own, "--templates", str(copied_templates), "--timeout", "60")
    assert "simple-gpt2" in done.stderr
    assert state(own) == "ready"


def test_a_model_that_loads_too_slowly_is_a_clear_timeout(own: Path, copied_templates: Path) -> None:
    slow_down(copied_templates, 600)
    done = up(own, "--templates", str(copied_templates), "--timeout", "3", check=False)
    assert done.returncode == 1
    assert "not ready within 3 s: " in done.stderr
    assert "simple-gpt2" in done.stderr
    assert leftovers(own) == []


def test_truncated_weights_are_refused_before_a_server_starts(own: Path) -> None:
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
        cwd=own, env={**os.environ, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert leftovers(own) == []


def test_a_client_whose_server_stops_fails_and_averages_nothing(own: Path) -> None:
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
        "500",
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


@pytest.mark.parametrize("model", ["simple-gpt2", "iterative-gpt2"])
def test_a_killed_stub_is_started_again_or_its_model_reported(own: Path, model: str) -> None:
    up(own)
    server = server_of(own)
    assert server
    (stub,) = [p for p in server.children() if model in " ".join(p.cmdline())]
    stub.kill()
    stub.wait(10)

    def answers_or_is_reported() -> bool:
        done = labctl("infer", STACK, "-m", model, "-p", "I have lived in", "-o", "3", root=own, check=False)
        rows = {row["name"]: row["state"] for row in shown(own)["models"]}
        return done.returncode == 0 or rows[model] == "UNAVAILABLE"

    eventually(answers_or_is_reported)
    other = "simple-gpt2" if model == "iterative-gpt2" else "iterative-gpt2"
    assert labctl("infer", STACK, "-m", other, "-p", "I have lived in", "-o", "3", root=own).stdout


def test_two_different_stacks_live_side_by_side(own: Path) -> None:
    tiny = ["--set", "model=random:tiny-llama", "--runtime", "local", "--ports", "auto"]
    first, second = start(own, "up", STACK), start(own, "up", "inflight-batching", *tiny[:2])
    try:
        assert [first.wait(DEADLINE_S), second.wait(DEADLINE_S)] == [0, 0], first.stderr.read() + second.stderr.read()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert {shown(own)["state"], shown(own, "inflight-batching")["state"]} == {"ready"}
    labctl("down", "inflight-batching", root=own)
    assert leftovers(own, "inflight-batching") == []
    assert state(own) == "ready", "taking one down must not touch the other"


def test_ten_thousand_requests_at_once_are_all_answered_in_bounded_memory(own: Path) -> None:
    up(own)
    server = server_of(own)
    assert server
    with Stream(shown(own)["endpoints"]["grpc"], "simple-gpt2") as stream:
        for number in range(10_000):
            stream.send(str(number), b"The", {"max_tokens": 1})
        names = {stream.next(timeout=DEADLINE_S)[0] for _ in range(10_000)}
    assert len(names) == 10_000
    everyone = [server, *server.children(recursive=True)]
    assert sum(process.memory_info().rss for process in everyone) < 4 * 2**30
    assert state(own) == "ready"


def test_cancelled_sequences_that_hold_every_place_are_told_as_stalled_and_it_passes(own: Path) -> None:
    up(own, "--set", "max_candidate_sequences=4", "--set", "max_sequence_idle_microseconds=8000000")
    endpoint = shown(own)["endpoints"]["grpc"]
    for _ in range(6):
        with Stream(endpoint, "iterative-gpt2") as stream:
            stream.send("cancelled", b"I have lived in", {"max_tokens": 900, "ignore_eos": True})
            stream.next()
    with Stream(endpoint, "iterative-gpt2") as stream:
        stream.send("waiting", b"Hello", {"max_tokens": 5})
        eventually(lambda: state(own) == "stalled", 8)

    def answers() -> bool:
        with Stream(endpoint, "iterative-gpt2") as stream:
            stream.send("later", b"Hello", {"max_tokens": 2})
            try:
                return bool(stream.next(timeout=3)[1])
            except queue.Empty:
                return False

    eventually(answers)
    eventually(lambda: state(own) == "ready")
