"""engine=vllm in a container: the second server image is locked down as the first, and vLLM's own scheduler answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machinery import container, labctl, status
from waiting import DEADLINE_S

from labctl.triton.server_api import call_triton
from labctl.workspace import Workspace
from labkit.evidence import steplog

pytestmark = pytest.mark.night

QUESTION = {"text_input": "Once upon a time", "max_tokens": 4, "bad_words": "", "stop_words": ""}
SETTINGS = ("--set", "engine=vllm", "--set", "model=shipped:tiny-llama")


def test_vllm_answers_in_a_container_that_is_locked_down_and_shows_its_blocks(own: Path) -> None:
    stack = "inflight-batching"  # its image is built by this test alone, and no other test waits for that
    labctl("up", stack, "--runtime", "compose", "--ports", "auto", "--timeout", "600", *SETTINGS, root=own, timeout=700)
    shown = status(own, stack)
    assert (shown["state"], shown["runtime"]) == ("ready", "compose")
    code, body = call_triton(shown["endpoints"]["http"], "POST", "/v2/models/ensemble/generate", QUESTION, DEADLINE_S)
    assert code == 200 and len(json.loads(body)["text_output"]) > len("Once upon a time")
    steps = steplog.read_step_log(Workspace(own, own / "cache").folder(stack).run_dir(), "tensorrt_llm")
    assert steps and any(ids for step in steps for ids in step.block_ids)  # vLLM alone tells them
    attributes = container(own, stack).attrs
    assert "-vllm-" in attributes["Config"]["Image"]
    host = attributes["HostConfig"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not attributes["Config"]["User"].startswith("0")
    labctl("down", stack, root=own)
