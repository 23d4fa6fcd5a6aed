"""Everything that a scheduler can do, at once, on a real Triton: evidence of each. Answers: test_engine_contract.py."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from machinery import labctl
from waiting import DEADLINE_S, eventually

from labkit.client import metrics
from labkit.client.ask import tensor
from labkit.evidence import steplog

pytestmark = pytest.mark.xdist_group("llm")
SETTINGS: dict[str, Any] = {
    "model": "random:tiny-llama",
    "exact": True,
    "engine_precision": "fp32",
    "max_num_sequences": 4,
    "max_num_tokens": 48,
    "scheduling": "fair",
    "batch_scheduler_policy": "max_utilization",
    "max_tokens_in_paged_kv_cache": 512,
}
SHARED = {"enable_kv_cache_reuse": True}
GUESSED = {"speculation": "prompt_lookup", "num_assistant_tokens": 3}
BEGINNING = [7 + n for n in range(100)]
PROMPTS = [[*BEGINNING, *([200 + n, 201, 202] * (1 + n % 4))] for n in range(20)]
LIMITS = [30 + n for n in range(20)]


def ask(ids: list[int], tokens: int) -> list[Any]:
    return [
        tensor("input_ids", ids, np.int32),
        tensor("input_lengths", len(ids), np.int32),
        tensor("request_output_len", tokens, np.uint32),
    ]


def ask_all(server: Any) -> None:
    """Ask for all answers at once, and wait for them."""
    done: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.infer("tensorrt_llm", ask(BEGINNING, 1))  # its keys and values are kept, the last block half full
        for number, ids in enumerate(PROMPTS):
            client.async_infer(
                "tensorrt_llm",
                ask(ids, LIMITS[number]),
                request_id=str(number + 1),
                parameters={"tenant": "light" if number == 19 else "flood", "request_priority": 1},
                callback=lambda result, error: done.put(error),
            )
        assert [done.get(timeout=DEADLINE_S) for _ in PROMPTS] == [None] * len(PROMPTS)


@pytest.mark.parametrize("more", [SHARED, GUESSED], ids=["shared", "guessed"])
def test_with_all_that_goes_together_each_setting_is_seen_at_work(
    more: dict[str, Any], lab_server: Any, checkout: Any
) -> None:
    server = lab_server("inflight-batching", **SETTINGS, **more)
    ask_all(server)
    names = {str(number + 1) for number in range(len(PROMPTS))}

    def all_told() -> list[Any] | None:
        """The steps, once the log has the end of each request: an answer comes before its line."""
        steps = steplog.read_step_log(server.run_dir, "tensorrt_llm")
        return steps if names <= {name for step in steps for name in step.ended} else None

    steps = eventually(all_told)
    assert max(sum(step.tokens) for step in steps) <= 48
    if more is SHARED:
        assert sum(sum(step.cached) for step in steps) >= 20 * 96
        shown = ["labs_cached_tokens_total"]
    else:
        guessed, accepted = (sum(sum(getattr(step, name)) for step in steps) for name in ("guessed", "accepted"))
        assert 0 < accepted <= guessed
        shown = ['outcome="accepted"', 'outcome="rejected"']
    assert any("flood" in (step.tenants or {}) for step in steps)
    assert overtaken(steps) <= SETTINGS["max_num_sequences"], "under fair the light tenant's request goes first"

    eventually(lambda: all(name in page(server) for name in [*shown, 'tenant="flood"']))
    status = labctl("status", "inflight-batching", root=checkout).stdout
    assert "scheduling=fair" in status and ("speculation=prompt_lookup" in status) == (more is GUESSED)


def overtaken(steps: list[Any]) -> int:
    """How many joined while the light tenant's request waited: it was sent last, and so came when it came.

    One that joined in the step before which it came never waited.
    """
    waited = [place for place, step in enumerate(steps) if "20" in step.waiting]
    if not waited:
        return 0
    joined = [id for step in steps[waited[0] + 1 :] for id in step.joined]
    return joined.index("20")


def test_a_priority_that_is_none_is_refused_by_name_and_what_no_engine_can_do_too(lab_server: Any) -> None:
    server = lab_server("inflight-batching", **SETTINGS, **GUESSED)
    with grpcclient.InferenceServerClient(server.grpc) as client, pytest.raises(Exception, match="request_priority"):
        client.infer("tensorrt_llm", ask([5], 2), parameters={"request_priority": 0})


def page(server: Any) -> str:
    return metrics.metrics_page(server.metrics, DEADLINE_S)
