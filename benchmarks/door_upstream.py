"""Triton's own tests of its OpenAI frontend, against ours: which pass, which fail, and which do not apply, and why.

A person fetches them (``git clone --depth 1 https://github.com/triton-inference-server/server``) and names the folder:
``make bench ARGS="door-upstream --tests server/python/openai/tests"``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import upstream_tests
from benchmarks.door import MODEL, served
from benchmarks.upstream_tests import FAILED, NOT_APPLICABLE, PASSED
from labkit.errors import LabError
from labkit.tables import format_table

#: Files about what the door does not have.
ABSENT = {
    "test_embeddings.py": "no model of the labs makes embeddings",
    "test_lora.py": "no model of the labs has LoRA adapters",
    "test_model_management.py": "the door loads and unloads no models",
    "test_openai_restricted_apis.py": "the door listens on 127.0.0.1 alone, and restricts no paths",
    "test_request_size.py": "it tests a class of upstream's server, not an answer",
    "test_tool_calling.py": "no model of the labs calls tools",
}
#: Tests whose server is not ours to be, or that ask for what the door does otherwise on purpose.
BEYOND = {
    "TestChatCompletionsTokenizers": "it starts upstream's server with tokenizers of its own",
    "test_models_get|test_models_list|openai_client_models": "it asks for the models of upstream's own repository",
    "test_startup_metrics": "Triton's counters are on Triton's own port",
    "multiple_choices": "upstream refuses several choices; the door answers them",
    r"OpenAIClient::test_openai_client_(chat_)?completion$": "at the limit upstream says stop, the door length",
    r"parameters\[logit_bias": "both refuse it with 400; the test compares upstream's words",
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tests", type=Path, metavar="FOLDER", help="door-upstream: upstream's python/openai/tests")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Run the tests, print each one's outcome, and count them."""
    if asked.tests is None:
        raise LabError(
            "door-upstream needs the tests that it runs",
            remedy="--tests FOLDER (python/openai/tests)",
            code="tests-missing",
        )
    files = upstream_tests.find(asked.tests)
    with served() as (_, port):
        outcomes = upstream_tests.run(files, f"http://127.0.0.1:{port}", MODEL, ABSENT, BEYOND)
    order = (PASSED, NOT_APPLICABLE, FAILED)
    outcomes.sort(key=lambda one: (order.index(one.result), one.test))
    print(format_table([(one.result, one.test, one.reason[:120]) for one in outcomes], ("result", "test", "reason")))
    counts = Counter(one.result for one in outcomes)
    print(
        f"{'not met' if counts[FAILED] or not counts[PASSED] else 'met'}: "
        + ", ".join(f"{counts[one]} {one}" for one in order)
    )
    return {"counts": counts, "tests": [asdict(one) for one in outcomes]}
