"""Each rule of a task has a case that fails without it: the reference passes its check, and no mutant of it does."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from counting_trial import CountingTrial
from exercise_cases import EXERCISES

from labctl.learn.exercise import Exercise, find_exercise

OWN_BLOCK = ("there = len(beginning)", "there += block_size")
FIT = "    x = np.array("
OUTLIERS = f"""    alike = {{}}
    for step in sorted(recorded, key=lambda step: step["ms"]):
        alike.setdefault(tuple(shape(step)), []).append(step)
    recorded = [step for steps_alike in alike.values() for step in steps_alike[: -(-len(steps_alike) * 3 // 4)]]
{FIT}"""
NEAREST = """[float(np.mean(np.array([other["ms"] for other in recorded])[np.argsort([
        20 * abs(one["decoding"] - other["decoding"]) + 2 * abs(one["prompt_tokens"] - other["prompt_tokens"])
        + abs(one["context"] - other["context"]) / 10 for other in recorded])[:{}]])) for one in steps]"""
PARTS = {"09b": "elsewhere"}  # what asks no server
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.night) for seed in range(2, 21))]
# Of each exercise, its rules, and the solution without each of them: what is replaced in it, and by what.
MUTANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "05c": {
        "while they need more blocks than there are": ("used() > blocks and", "used() >= blocks and"),
        "the last is preempted": ("running.pop()", "running.pop(0)"),
        "it goes to the head": ("waiting.insert(0, running.pop())", "waiting.append(running.pop())"),
        "it keeps its tokens": ("            preempted += 1", "            waiting[0][2] = 0; preempted += 1"),
        "the first in the queue": ("waiting.pop(0)", "waiting.pop()"),
        "then the next": (
            "            running.append(waiting.pop(0))",
            "            running.append(waiting.pop(0)); break",
        ),
        "no_evict: the prompt": ("prompt + output if", "output if"),
        "no_evict: the output": ("prompt + output if", "prompt + 1 if"),
        "no_evict: nothing more": ('if policy == "max_utilization" else 0', ""),
        "the next token": ("prompt + generated + 1", "prompt + generated"),
        "the tokens so far": ("prompt + generated + 1", "prompt + 1"),
        "a block for each running one": ('if policy == "max_utilization" else 0', "* 0"),
        "none for the newcomer": ("reserve = len(running)", "reserve = 1 + len(running)"),
        "one only": ("reserve = len(running)", "reserve = len(running) > 0"),
        "leaves with its last token": ("request[2] < request[1]", "request[2] <= request[1]"),
        "over all steps": ("batches.append(len(running))", "batches += [len(running)] if running[1:] else []"),
    },
    "05e": {
        "any step costs something": ("return [1, ", "return ["),
        "decoding requests": (' step["decoding"],', ""),
        "prompt tokens": (' step["prompt_tokens"],', ""),
        "context": (', step["context"]]', "]"),
        "each has a cost of its own": (
            'step["decoding"], step["prompt_tokens"]',
            'step["decoding"] + step["prompt_tokens"]',
        ),
        "the slowest of each shape count": (FIT, OUTLIERS),
        "all steps are a little off": ("@ costs)", "@ costs * 0.97)"),
        "and so is each kind": ("@ costs)", "@ (costs * [1, 1, 1, 0.9]))"),
        "all steps decide, and not one alike": ("return (np", f"return {NEAREST.format(1)}\n    return (np"),
    },
    "05f": {
        "at least 90 %": ("SHARE = 0.9", "SHARE = 0.8"),
        "TTFT": ('tokens[0] - at <= recording["ttft_ms"] and ', ""),
        "TTFT counts from the arrival": (
            "new.append(waiting.pop(0))",
            "arrived[waiting[0]] = now; new.append(waiting.pop(0))",
        ),
        "TPOT": (' and tpot <= recording["tpot_ms"]', ""),
        "gaps": ("1000 * gap / rate", "1000 / rate"),
        "a step": ('recording["step_ms"] + ', ""),
        "decoding requests": (' + recording["decode_ms"] * len(running)', ""),
        "those that decode alone": ("len(running) + recording", "(len(running) + len(new)) + recording"),
        "tokens of prompts": (' + recording["prompt_token_ms"] * prompts', ""),
        "a joining step makes the first token": (
            "    running += new\n        for number in running:",
            "    for number in running:",
            "    running = [number",
            "    running += new\n        running = [number",
        ),
        "slots": ('len(new) < recording["slots"]', "len(new) < 1000"),
        "all slots": ('len(new) < recording["slots"]', 'len(new) < recording["slots"] - 1'),
        "requests join when they have arrived": ("arrived[waiting[0]] <= now and", ""),
    },
    "06a": {
        "a decoding request gets a token of the budget": ("budget - decoding", "budget"),
        "one token": ("budget - decoding", "budget - 2 * decoding"),
        "the budget is whole": ("budget - decoding", "budget - decoding - 1"),
        "the rest goes to the prompts": ("rest = budget - decoding", "rest = (budget - decoding) // 2"),
        "in order": (
            "for tokens in left:",
            "for tokens in reversed(left):",
            "parts.append(part)",
            "parts.insert(0, part)",
        ),
        "each takes all that it needs": (
            "min(tokens, rest)",
            "min(tokens, rest, -(-(budget - decoding) // len(left)))",
        ),
        "a prompt that does not fit begins": (
            "min(tokens, rest)",
            "tokens if tokens <= rest else 0 if tokens <= budget else rest",
        ),
        "however little is left": ("min(tokens, rest)", "min(tokens, rest) if rest >= min(tokens, 8) else 0"),
        "what a prompt leaves, the next one takes": ("rest -= part", "rest = 0 if part else rest"),
    },
    "06c": {
        "a block holds block_size tokens": (
            "range(block_size, len(prompt) + 1, block_size)",
            "range(1, len(prompt) + 1)",
        ),
        "tokens depend on every token before": (
            *OWN_BLOCK,
            "tuple(prompt[:end])",
            "tuple(prompt[end - block_size : end])",
        ),
        "not on their own block and its place": (
            *OWN_BLOCK,
            "tuple(prompt[:end])",
            "(end, *prompt[end - block_size : end])",
        ),
        "not on the block before alone": (
            *OWN_BLOCK,
            "tuple(prompt[:end])",
            "(end, *prompt[max(0, end - 2 * block_size) : end])",
        ),
        "memory is plenty": ("known.update(beginnings)", "known = set(beginnings)"),
        "every earlier prompt": ("known.update(beginnings)", "known = known or set(beginnings)"),
        "what follows a known beginning stays too": (
            "known.update(beginnings)",
            "known.update([] if there else beginnings)",
        ),
        "tokens, not blocks": ("found.append(there)", "found.append(there // block_size)"),
    },
    "09b": {
        "a reader": ('request["readers"] == 0 or ', ""),
        "each reader": ('request["readers"] == 0', 'request["readers"] <= 1'),
        "readers do not share the limit": (
            '<= request["limit_ms"]',
            '<= request["limit_ms"] / max(1, request["readers"])',
        ),
        "what is cached": (' - request["cached"]', ""),
        "time of a token": ('request["token_ms"]', "0.1"),
        "limit": ('request["limit_ms"]', "6"),
        "no times at all": ('todo * request["token_ms"] <= request["limit_ms"]', "todo <= 60"),
        "the limit itself is allowed": ("<= request", "< request"),
        "nothing beyond it": ('<= request["limit_ms"]', '<= request["limit_ms"] + request["token_ms"]'),
    },
}


def answer(exercise: Exercise, rule: str) -> str:
    (text,) = exercise.texts("solution").values()
    if not rule:
        return text
    words = MUTANTS[exercise.id][rule]
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old in text, rule
        text = text.replace(old, new)
    return text


@cache
def check_of(id: str) -> Any:
    """An exercise's check, read once: what it has found out for a seed serves all answers."""
    return runpy.run_path(str(find_exercise(EXERCISES, id).folder / "check.py"))[PARTS.get(id, "check")]


def failures(id: str, rule: str, folder: Path, seed: int) -> list[str]:
    exercise = find_exercise(EXERCISES, id)
    (name,) = exercise.texts("solution")
    (folder / name).write_text(answer(exercise, rule))
    trial = CountingTrial(exercise, folder, seed)
    check_of(id)(trial)
    return [sentence for ok, sentence in trial.checks if not ok]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("id", "rule"), [(id, rule) for id, rules in MUTANTS.items() for rule in rules])
def test_without_a_rule_of_the_task_no_answer_passes(tmp_path: Path, id: str, rule: str, seed: int) -> None:
    assert failures(id, rule, tmp_path, seed), f"{rule}: passes"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("id", MUTANTS)
def test_the_reference_passes_with_every_seed(tmp_path: Path, id: str, seed: int) -> None:
    assert failures(id, "", tmp_path, seed) == []
