"""How often is each of the three models executed: looked up in the server's step logs, and not predicted."""

import json
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / ".labs" / "exercise" / "run"


def predict(prompts, max_tokens, limit):
    """The rows of every execution, in order, for each model.

    All prompts are there before anything is computed, and are taken in their order; answer i is max_tokens[i] tokens
    long. `limit` is the most rows of one execution, for both models that batch. An execution of tensorrt_llm is a step
    of the engine: one token for each of its rows.
    """
    steps = {model: last_steps(model, len(prompts)) for model in ("llama-python", "llama-python-batched")}
    steps["tensorrt_llm"] = last_steps("tensorrt_llm", len(prompts))
    made = {}
    for step in steps["tensorrt_llm"]:
        for name, count in zip(step["ids"], step["made"], strict=True):
            made[name] = made.get(name, 0) + count
    if list(made.values()) != max_tokens:
        return {}  # the server has not been asked yet
    return {model: [len(step["ids"]) for step in found] for model, found in steps.items()}


def last_steps(model, count):
    """The steps in which the newest `count` requests to a model were."""
    lines = [json.loads(line) for path in RUN.glob(f"steps-{model}-*.jsonl") for line in path.open()]
    steps = [line for line in lines if line["kind"] == "step"]
    names = list(dict.fromkeys(name for step in steps for name in step["ids"]))[-count:]
    return [step for step in steps if set(step["ids"]) & set(names)]
