"""What labctl says of stacks on an engine that is silent, stopped, closed to the caller, or old is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from fake_docker import FakeDocker, serving
from machinery import container, labctl, leftovers, processes_about, status

from labctl.runtimes import docker_engine

STACK = "quick"
ON = ("--runtime", "compose", "--ports", "auto")
NOWHERE = "unix:///nowhere.sock"


def test_a_stack_whose_engine_is_silent_is_unknown_stays_and_gets_no_second_server(own: Path) -> None:
    labctl("up", STACK, *ON, root=own)
    before, at_work = container(own, STACK).id, processes_about(own)
    down = labctl("down", STACK, root=own, check=False, DOCKER_HOST=NOWHERE)
    assert down.returncode == 1 and "not known" in down.stderr, down.stdout
    every = labctl("down", "--all", root=own, check=False, DOCKER_HOST=NOWHERE)
    assert every.returncode == 1 and "nothing was up" not in every.stdout
    shown = json.loads(labctl("status", STACK, "--json", root=own, DOCKER_HOST=NOWHERE).stdout)
    assert shown["state"] == "unknown" and "nowhere.sock" in shown["ended"]
    for words in ((), ("--runtime", "local")):
        again = labctl("up", STACK, "--ports", "auto", *words, root=own, check=False, DOCKER_HOST=NOWHERE)
        assert again.returncode == 1 and "not known" in again.stderr
    assert processes_about(own) == at_work
    assert (container(own, STACK).id, status(own, STACK)["state"]) == (before, "ready")
    labctl("down", STACK, root=own)
    assert leftovers(own, STACK) == []


def test_in_a_client_container_a_live_stack_is_unknown_too_and_its_server_can_be_asked(
    shared: Path, in_containers: Callable[..., dict[str, Any]]
) -> None:
    in_containers(STACK)
    script = f"labctl status {STACK} --json; labctl metrics --endpoint $TRITON_METRICS; touch $LABS_ROOT/results/mine"
    done = in_the_shell(shared, script)
    shown, end = json.JSONDecoder().raw_decode(done.stdout)
    assert shown["state"] == "unknown" and "TRITON_GRPC" in shown["ended"]
    assert "echo" in done.stdout[end:], done.stderr
    assert (shared / "results" / "mine").stat().st_uid == os.getuid()


def test_the_shell_beside_a_stack_has_what_a_person_needs_and_upstreams_clients_too(
    shared: Path, in_containers: Callable[..., dict[str, Any]]
) -> None:
    in_containers(STACK)
    script = """
command -v labctl curl nano python
curl -s -o /dev/null -w '%{http_code}\\n' "http://$TRITON_HTTP/v2/health/ready"
python - <<END
import os
import numpy, tritonclient.grpc as grpc, tritonclient.http as http
from transformers import AutoTokenizer, LlamaTokenizer, T5Tokenizer
words = AutoTokenizer.from_pretrained(os.environ["LABS_ROOT"] + "/labs/shared/models/tiny-llama", padding_side="left")
words.pad_token = words.eos_token
print(words.decode(words.encode("hello", add_special_tokens=False)))
print(grpc.InferenceServerClient(os.environ["TRITON_GRPC"]).is_server_ready())
print(http.InferenceServerClient(os.environ["TRITON_HTTP"]).is_server_ready())
END
exit 7
"""
    done = in_the_shell(shared, script)
    assert done.returncode == 7, done.stderr
    lines = done.stdout.splitlines()
    assert [Path(line).name for line in lines[:4]] == ["labctl", "curl", "nano", "python"], done.stderr
    assert lines[4:] == ["200", "hello", "True", "True"], done.stderr


def in_the_shell(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """What `labctl shell` makes of commands that are given to it."""
    words = [sys.executable, "-m", "labctl", "shell", STACK]
    return subprocess.run(words, cwd=root, input=script, capture_output=True, text=True, timeout=600, check=False)


def test_containers_that_were_removed_by_hand_are_removed_and_did_not_die(own: Path) -> None:
    labctl("up", STACK, *ON, root=own)
    container(own, STACK).remove(force=True)
    shown = labctl("status", STACK, root=own).stdout
    assert "is removed" in shown and "died" not in shown
    assert f"{STACK} is down" in labctl("down", STACK, root=own).stdout
    assert leftovers(own, STACK) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_user_outside_the_sockets_group_is_sent_into_it(own: Path) -> None:
    if not docker_engine.engine_address().startswith("unix://"):
        pytest.skip("the engine has no socket here")
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); from labctl.runtimes import docker_engine as d\n"
    code += "try: d.require_docker()\nexcept Exception as error: print(error.remedy)"
    stranger = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code)
    env = {**os.environ, "HOME": "/nonexistent"}
    done = subprocess.run(stranger, cwd="/", env=env, capture_output=True, text=True, check=False)
    assert docker_engine.JOIN in done.stdout, done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can put another file in the socket's place")
@pytest.mark.parametrize("config", [None, {"auths": {}}])
def test_a_stopped_engine_is_said_to_be_stopped(own: Path, tmp_path: Path, config: dict[str, Any] | None) -> None:
    dead = tmp_path / "dead.sock"
    with serving(FakeDocker(), dead):
        pass
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    if config is not None:
        (home / ".docker" / "config.json").write_text(json.dumps(config))
    place = os.path.realpath("/var/run/docker.sock")
    words = f"mount --bind {dead} {place} && exec {sys.executable} -m labctl up {STACK} --runtime compose"
    env = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", words], cwd=own, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "refused" in said and docker_engine.START in said, done.stderr


def test_an_engine_that_is_too_old_for_compose_yaml_is_named_by_up_and_by_doctor(own: Path, tmp_path: Path) -> None:
    with serving(FakeDocker(version="24.0.7"), tmp_path / "old.sock") as address:
        up = labctl("up", STACK, *ON, root=own, check=False, DOCKER_HOST=address)
        rows = json.loads(labctl("doctor", "--json", root=own, check=False, DOCKER_HOST=address).stdout)
    assert up.returncode == 1 and "24.0.7 is too old" in up.stderr and "25" in up.stderr
    assert not leftovers(own, STACK)
    (compose,) = [row for row in rows if row["name"] == "runtime compose"]
    assert compose["state"] != "ok" and "24.0.7" in compose["found"]
