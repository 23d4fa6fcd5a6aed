"""A pause of a real stack that nobody ends: it ends by itself, before Triton's own limit loses anybody."""

from __future__ import annotations

import time
from typing import Any

import pytest
from waiting import DEADLINE_S

from labctl.clock import SHARE, Clock, pause_limit
from labkit.client.ask import TextStream

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("iterative")]
MODELS = ("simple-gpt2", "iterative-gpt2")
# A sequence that Triton does not hear of for so long is forgotten, and its client waits for ever. The quarter of it
# that is left behind a pause is time enough for a step of every model on a busy machine.
IDLE_S = 60.0
ASKED = (("The fox", 9), ("My favourite food is", 4), ("Anna", 5), ("In winter the", 3))


def test_a_pause_ends_before_triton_forgets_anybody_and_changes_no_text(lab_server: Any) -> None:
    idle = {"max_sequence_idle_microseconds": int(IDLE_S * 1e6)}
    server = lab_server("iterative", max_batch_size=2, threads=1, **idle)  # two seats for four
    clock = Clock(server.run_dir, MODELS, pause_limit(server.run_dir.parent / "repository"))
    with TextStream(server.grpc) as stream:
        asked = [(model, prompt, tokens) for model in MODELS for prompt, tokens in ASKED]
        free = [stream.send(model, prompt, max_tokens=tokens, ignore_eos=True) for model, prompt, tokens in asked]
        stream.wait(*free, timeout=DEADLINE_S)
        began = time.monotonic()
        clock.pause()
        paused = [stream.send(model, prompt, max_tokens=tokens, ignore_eos=True) for model, prompt, tokens in asked]
        stream.wait(*paused, timeout=DEADLINE_S)
    assert clock.paused == [], "nobody has said that it is to run"
    assert min(record.end for record in paused) - began >= SHARE * IDLE_S
    assert [(record.error, record.text) for record in paused] == [("", record.text) for record in free]
