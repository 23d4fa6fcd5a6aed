"""Lab 02 end to end on a real Triton, and the faults that it survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import LabServer, labctl
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace

STACK = "iterative"
DEADLINE_S = 120.0


def eventually(check: Callable[[], Any], timeout: float = DEADLINE_S) -> Any:
    """The first true value of ``check`` before the deadline."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{check} did not become true within {timeout:g} s")


@pytest.fixture
def own(checkout: Path, tmp_path: Path) -> Iterator[Path]:
    """A checkout for one test, in which nothing may be left."""
    root = tmp_path / "own"
    root.mkdir()
    for item in checkout.iterdir():
        if item.is_symlink():
            (root / item.name).symlink_to(item.readlink())
    try:
        yield root
    finally:
        labctl("down", "--all", root=root, check=False)


def leftovers(root: Path) -> list[str]:
    return LocalRuntime(Workspace(root, root / "cache")).leftovers(STACK)


def server_of(root: Path) -> psutil.Process | None:
    record = LocalRuntime(Workspace(root, root / "cache")).find(STACK)
    return psutil.Process(record.server["pid"]) if record else None


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    """labctl in a process group of its own, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "labctl", *arguments, "--runtime", "local", "--ports", "auto"],
        cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def state(root: Path) -> str:
    shown: dict[str, str] = json.loads(labctl("status", STACK, "--json", root=root).stdout)
    return shown["state"]


@pytest.fixture
def copied_templates(own: Path) -> Path:
    """The lab's templates as files that a test may break."""
    folder = own / "templates"
    for source in (own / "model_repos" / "iterative").rglob("*"):
        if source.is_file() and "__pycache__" not in source.parts:
            target = folder / source.relative_to(own / "model_repos" / "iterative")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return folder


def test_the_whole_lab_runs_and_proves_its_verdict(own: Path) -> None:
    done = labctl(
        "run", STACK, "--quick", "--strict", "--runtime", "local", "--ports", "auto", "--json", "r.json", root=own
    )
    result = json.loads((own / "r.json").read_text())
    assert result["metrics"]["iterative"]["overlap"] > 0.5
    assert result["metrics"]["simple"]["overlap"] < 0.2
    assert {v["name"]: v["met"] for v in result["verdicts"]} == {"iterative-overlap": True}
    (folder,) = (own / "results" / "02-iterative-scheduling").iterdir()
    assert {"result.json", "requests.jsonl", "timeline.png", "trace.json", "report.md"} <= {
        p.name for p in folder.iterdir()
    }
    assert "overlapped for" in done.stdout
    assert leftovers(own) == []


def test_status_tells_endpoints_models_and_settings(lab_server: Callable[..., LabServer], checkout: Path) -> None:
    lab_server(STACK)
    shown = json.loads(labctl("status", STACK, "--json", root=checkout).stdout)
    assert (shown["state"], shown["runtime"], shown["triton"]) == ("ready", "local", "2.51.0")
    assert {m["name"]: m["state"] for m in shown["models"]} == {"simple-gpt2": "READY", "iterative-gpt2": "READY"}
    assert shown["settings"]["kv_cache"] is True
    assert Path(shown["settings"]["tokenizer_dir"], "tokenizer.json").is_file()


def test_it_listens_on_loopback_only(lab_server: Callable[..., LabServer]) -> None:
    up = lab_server(STACK)
    ports = {int(endpoint.split(":")[1]) for endpoint in (up.http, up.grpc, up.metrics)}
    listening = {
        c.laddr[0].removeprefix("::ffff:")
        for c in psutil.net_connections("tcp")
        if c.status == "LISTEN" and c.laddr[1] in ports
    }
    assert listening == {"127.0.0.1"}


def test_up_again_says_so_and_with_other_settings_refuses(lab_server: Callable[..., LabServer], checkout: Path) -> None:
    lab_server(STACK)
    again = labctl("up", STACK, "--runtime", "local", root=checkout)
    assert "already up with these settings" in again.stderr
    other = labctl("up", STACK, "--runtime", "local", "--set", "max_batch_size=2", root=checkout, check=False)
    assert other.returncode == 1
    assert "max_batch_size: it runs with 8, asked for 2" in other.stderr
    assert f"labctl down {STACK}" in other.stderr


def test_infer_and_bench_and_metrics_work_on_a_running_stack(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    lab_server(STACK)
    answer = labctl("infer", STACK, "-m", "iterative-gpt2", "-p", "I have lived in", "-o", "5", "-S", root=checkout)
    assert answer.stdout.startswith("I have lived in ")
    table = labctl("bench", STACK, "--concurrency", "2", "--request-count", "4", "--output-tokens", "8", root=checkout)
    assert "2 in flight" in table.stdout
    assert "iterative-gpt2" in labctl("metrics", STACK, root=checkout).stdout
    assert state(checkout) == "ready", "bench took down a stack that was up before it"


def test_down_leaves_nothing_and_may_be_said_twice(own: Path) -> None:
    labctl("up", STACK, "--runtime", "local", "--ports", "auto", root=own)
    assert leftovers(own)
    assert "is down" in labctl("down", STACK, root=own).stdout
    assert leftovers(own) == []
    assert "was not up" in labctl("down", STACK, root=own).stdout


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
    labctl("up", STACK, "--runtime", "local", "--ports", "auto", root=own)
    server_of(own).kill()  # type: ignore[union-attr]
    eventually(lambda: server_of(own) is None)
    assert state(own) == "failed"
    labctl("down", STACK, root=own)
    assert state(own) == "absent"
    assert leftovers(own) == []


def up_with(own: Path, templates: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return labctl(
        "up",
        STACK,
        "--runtime",
        "local",
        "--ports",
        "auto",
        "--templates",
        str(templates),
        *more,
        root=own,
        check=False,
    )


def test_a_model_that_cannot_load_fails_up_with_tritons_reason(own: Path, copied_templates: Path) -> None:
    (copied_templates / "simple-gpt2" / "1" / "model.py").write_text("raise RuntimeError('no luck today')\n")
    done = up_with(own, copied_templates)
    assert done.returncode == 1
    assert "Triton could not load simple-gpt2" in done.stderr
    assert "no luck today" in done.stderr
    assert leftovers(own) == []


def test_a_wrong_datatype_reaches_the_person_in_tritons_words(own: Path, copied_templates: Path) -> None:
    path = copied_templates / "simple-gpt2" / "config.pbtxt"
    path.write_text(
        path.read_text().replace("input [", 'input [ { name: "extra" data_type: TYPE_INVALID dims: [ 1 ] },', 1)
    )
    done = up_with(own, copied_templates)
    assert done.returncode == 1
    assert "extra" in done.stderr
    assert leftovers(own) == []


SLOW = """\
import time
class TritonPythonModel:
    def initialize(self, args):
        time.sleep({0})
    def execute(self, requests):
        pass
"""


def test_a_model_that_loads_too_slowly_is_a_clear_timeout(own: Path, copied_templates: Path) -> None:
    (copied_templates / "simple-gpt2" / "1" / "model.py").write_text(SLOW.format(600))
    done = up_with(own, copied_templates, "--timeout", "3")
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
    labctl("up", STACK, "--runtime", "local", "--ports", "auto", root=own)
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
