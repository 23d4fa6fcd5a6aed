"""Each rule of a task has a case that fails without it: the reference passes its check, and no mutant of it does."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from counting_trial import CountingTrial
from exercise_cases import EXERCISES
from prometheus_here import prometheus, promtool

from labctl.learn.exercise import Exercise, find_exercise

FREED = "            if not self.holders[block]:\n                self.free_blocks.append(block)"
TOO_FEW = "        if missing > len(self.free_blocks):\n            raise OutOfBlocks"
APPENDED = "        self.tokens[sequence].append(token)\n"
OWN_BLOCK = ("there = len(beginning)", "there += block_size")
FIT = "    x = np.array("
__all__ = ["prometheus", "promtool"]
OUTLIERS = f"""    alike = {{}}
    for step in sorted(recorded, key=lambda step: step["ms"]):
        alike.setdefault(tuple(shape(step)), []).append(step)
    recorded = [step for steps_alike in alike.values() for step in steps_alike[: -(-len(steps_alike) * 3 // 4)]]
{FIT}"""
NEAREST = """[float(np.mean(np.array([other["ms"] for other in recorded])[np.argsort([
        20 * abs(one["decoding"] - other["decoding"]) + 2 * abs(one["prompt_tokens"] - other["prompt_tokens"])
        + abs(one["context"] - other["context"]) / 10 for other in recorded])[:{}]])) for one in steps]"""
PLACES, RESERVE, VICTIM = "self.max_running - len(self.running)", "len(self.running)", "self.running[-1]"
# What asks no server, where it is not the whole check.
PARTS = dict.fromkeys(("02d", "02e", "02f"), "rules_kept") | {
    "03c": "elsewhere",
    "06d": "functions_right",
    "09b": "elsewhere",
}
SLOW = ("05b", "06b", "07d")  # checks of a second or more: their mutants are the night's
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.night) for seed in range(2, 21))]
# Of each exercise, its rules, and the solution without each of them: what is replaced in it, and by what.
MUTANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "02d": {
        "allocate: long enough": ("-(-len(tokens) // self.size)", "len(tokens) // self.size"),
        "allocate: just long enough": ("-(-len(tokens) // self.size)", "len(tokens) // self.size + 1"),
        "allocate: for its prompt": ("-(-len(tokens) // self.size)", "1"),
        "allocate: blocks that there are": ("deque(range(count))", "deque(range(1, count + 1))"),
        "allocate: all of them": ("deque(range(count))", "deque(range(count - 1))"),
        "allocate: none is held": ("self.free_blocks.popleft() for", "self.free_blocks[0] for"),
        "allocate returns 0": ("        return 0", "        return len(tokens) // self.size * self.size"),
        "append: room for one more": ("% self.size == 0:", "% self.size == -1:"),
        "append: when all are full": ("% self.size == 0:", "% self.size == self.size - 1:"),
        "append: only then": ("% self.size == 0:", "% self.size <= self.size:"),
        "append returns None": (APPENDED, f"{APPENDED}        return token\n"),
        "free: its blocks are free": ("self.free_blocks.extend(reversed(self.tables.pop(sequence)))", "pass"),
        "free: all of them": ("reversed(self.tables.pop(sequence))", "self.tables.pop(sequence)[:-1]"),
        "OutOfBlocks": ("raise OutOfBlocks", "raise MemoryError"),
        "only with too few": ("missing > len", "missing >= len"),
        "allocate changes nothing": (TOO_FEW, TOO_FEW.replace("raise", "self.free_blocks.clear()\n            raise")),
        "append changes nothing": (
            APPENDED,
            "",
            "        if len(self.tokens[sequence]) % self.size == 0:",
            f"{APPENDED}        if len(self.tokens[sequence]) % self.size == 1 % self.size:",
        ),
    },
    "02e": {
        "the same tokens": ("self.known.get(tuple(tokens[: (len(found) + 1) * self.size]))", "self.known.get(())"),
        "behind the same prefix": (
            "self.known.get(tuple(tokens[: (len(found) + 1) * self.size]))",
            "self.known.get(tuple(tokens[len(found) * self.size : (len(found) + 1) * self.size]))",
            "tuple(self.tokens[sequence][:end])",
            "tuple(self.tokens[sequence][end - self.size : end])",
        ),
        "whether a sequence holds it": ("if block is None:", "if block is None or self.holders[block]:"),
        "or not": ("if block is None:", "if block is None or not self.holders[block]:"),
        "allocate returns tokens": ("return len(found) * self.size", "return len(found)"),
        "that were found": ("return len(found) * self.size", "return 0"),
        "the last one is never among them": ("self.size < len(tokens)", "self.size <= len(tokens)"),
        "all others are": ("self.size < len(tokens)", "self.size < len(tokens) - 1"),
        "a block that allocate fills": ("range((len(found) + 1) * self.size, len(tokens) + 1", "range(0, 0"),
        "all that it fills": ("len(tokens) + 1, self.size)", "len(tokens), self.size)"),
        "a block that append fills": ("            self.register(sequence, len(tokens))", "            pass"),
        "free when no table has it": (FREED, "            self.free_blocks.append(block)"),
        "each table counts": ("            self.holders[block] += 1\n", ""),
        "and leaves": ("self.holders[block] -= 1", "pass"),
        "a found one is not free": ("self.free_blocks.remove(block)", "pass"),
        "found until it is taken": (FREED, f"{FREED}\n                self.known.pop(self.key.pop(block, None), None)"),
        "not longer": ("if key := self.key.pop(block, None):", "if key := None:"),
        "free the longest": ("self.free_blocks.popleft()", "self.free_blocks.pop()"),
        "too few: found ones that are free count": (
            "missing + sum(not self.holders[block] for block in found) >",
            "missing >",
        ),
        "only with too few": ("for block in found) > len", "for block in found) >= len"),
        "OutOfBlocks": ("raise OutOfBlocks", "raise MemoryError"),
        "append changes nothing": (
            "        tokens.append(token)\n",
            "",
            "        if len(tokens) % self.size == 0:\n            table",
            "        tokens.append(token)\n        if len(tokens) % self.size == 1 % self.size:\n            table",
        ),
    },
    "02f": {
        "fork: the same tokens": ("list(self.tokens[sequence])", "[]"),
        "fork: tokens of its own": ("list(self.tokens[sequence])", "self.tokens[sequence]"),
        "fork: the same blocks": ("= list(self.tables[sequence])", "= [self.take() for _ in self.tables[sequence]]"),
        "fork: all of them": ("= list(self.tables[sequence])", "= self.tables[sequence][:-1]"),
        "fork: a table of its own": ("= list(self.tables[sequence])", "= self.tables[sequence]"),
        "fork: each block has a holder more": ("        self.holders.update(self.tables[child])\n", ""),
        "append: if it is shared": ("elif self.holders[table[-1]] > 1:", "elif False:"),
        "append: not otherwise": ("elif self.holders[table[-1]] > 1:", "elif True:"),
        "append: by two already": ("elif self.holders[table[-1]] > 1:", "elif self.holders[table[-1]] > 2:"),
        "append: take a new one": ("copy = table[-1], self.take()", "copy = table[-1], table[-1]"),
        "append returns both": ("        return copy", "        return None"),
        "append returns the shared one first": ("        return copy", "        return copy and copy[::-1]"),
        "append: the new one is in the table": ("            table[-1] = copy[1]\n", ""),
        "free when no table has it: the shared one has a holder less": (
            "            self.holders[table[-1]] -= 1\n",
            "",
        ),
        "free when no table has it": (FREED, "            self.free_blocks.append(block)"),
        "a call that fails changes nothing": (
            "            copy = table[-1], self.take()\n            self.holders[table[-1]] -= 1\n",
            "            self.holders[table[-1]] -= 1\n            copy = table[-1], self.take()\n",
        ),
        "nor the tokens": (
            "        tokens.append(token)\n",
            "",
            "        if len(tokens) % self.size == 0:\n            table",
            "        tokens.append(token)\n        if len(tokens) % self.size == 1 % self.size:\n            table",
        ),
        "all else stays: a block that append fills": (
            "            self.register(sequence, len(tokens))",
            "            pass",
        ),
    },
    "03c": {
        "llama-python: how often": ("[1] * len(prompts)", "[1] * limit"),
        "llama-python: how many rows": ("[1] * len(prompts)", "[len(prompts)]"),
        "batched: at most limit rows": (
            "range(0, len(prompts), limit)",
            "range(0, len(prompts), 100)",
            " + limit]",
            "+ 100]",
        ),
        "batched: the limit given": (
            "range(0, len(prompts), limit)",
            "range(0, len(prompts), 4)",
            " + limit]",
            " + 4]",
        ),
        "batched: the rest afterwards": ("len(prompts), limit)", "len(prompts) - limit + 1, limit)"),
        "engine: requests join": (
            "while waiting and",
            "while waiting and (not running or min(running) == max(running)) and",
        ),
        "engine: as many as there is room for": ("while waiting and", "if waiting and"),
        "engine: and leave at once": ("if left > 1]", "if left >= 1]"),
        "engine: each at its own length": ("list(max_tokens)", "[max(max_tokens)] * len(max_tokens)"),
        "engine: in their order": ("waiting.pop(0)", "waiting.pop()"),
        "engine: in the order in which they came": ("list(max_tokens)", "sorted(max_tokens)"),
        "engine: at most limit rows": ("len(running) < limit", "len(running) <= limit"),
        "engine: all of them": ("len(running) < limit", "len(running) < limit - 1"),
        "engine: the limit given": ("len(running) < limit", "len(running) < 4"),
    },
    "05a": {
        "places: as long as any request waits": (PLACES, "0 if self.running else self.max_running"),
        "places: all slots": (PLACES, f"{PLACES} - 1"),
        "places: all that are free": (PLACES, f"min(1, {PLACES})"),
        "places: before the next step": (PLACES, f"{PLACES} if len(self.running) <= self.max_running // 2 else 0"),
        "places: never more than four": (PLACES, f"{PLACES} + 1"),
        "places: beside those that run": (PLACES, "self.max_running"),
        "static: a batch runs to its longest answer": ("sum(max(answers[begin", "sum(min(answers[begin"),
        "static: as many steps as tokens": ("sum(max(", "sum(1 + max("),
        "static: each batch to its own": ("sum(max(answers[begin : begin + slots])", "sum(max(answers)"),
        "static: the last batch too": ("0, len(answers), slots", "0, len(answers) - slots + 1, slots"),
        "static: in order of arrival": ("answers[begin : begin + slots]", "sorted(answers)[begin : begin + slots]"),
        "static: as many as there are slots": (
            "answers[begin : begin + slots]",
            "answers[begin : begin + 4]",
            "len(answers), slots)",
            "len(answers), 4)",
        ),
        "in flight: the slot that is free first": (
            "for answer in answers",
            "for n, answer in enumerate(answers)",
            "free.index(min(free))",
            "n % slots",
        ),
        "in flight: in order of arrival": ("for answer in answers", "for answer in sorted(answers, reverse=True)"),
        "in flight: as many as there are slots": ("[0] * slots", "[0] * 4"),
        "in flight: until the last one is done": ("max(free)", "min(free)"),
        "in flight: slots are empty at the end": ("max(free)", "-(-sum(answers) // slots)"),
        "a step for each token, not one more": ("+= answer", "+= answer + 1"),
        "not one less": ("+= answer", "+= answer - 1"),
        "static first": ("return static, max(free)", "return max(free), static"),
    },
    "05b": {
        "reserve: blocks must stay free": (RESERVE, "0"),
        "reserve: for each running request": (RESERVE, "min(1, len(self.running))"),
        "reserve: not for half of them": (RESERVE, "len(self.running) // 2"),
        "reserve: not a fixed number": (RESERVE, "3"),
        "reserve: not the fixed number of the large cache": (RESERVE, "6"),
        "reserve: not a number for each of the two sizes": (RESERVE, "2 if self.kv.blocks <= 8 else 8"),
        "reserve: not a share of the cache": (RESERVE, "self.kv.blocks // 4"),
        "reserve: one for each, not four": (RESERVE, "4 * len(self.running)"),
        "reserve: not all that each may need": (
            RESERVE,
            "sum(self.kv.needed(len(r.prompt) + r.limit) - self.kv.needed(len(r.prompt + r.output)) "
            "for r in self.running)",
        ),
        "victim: the last": (VICTIM, "self.running[0]"),
        "victim: not the one before it": (VICTIM, "self.running[-2]"),
        "victim: not the shortest": (VICTIM, "min(self.running, key=lambda r: len(r.prompt + r.output))"),
        "victim: not the longest": (VICTIM, "max(self.running, key=lambda r: len(r.prompt + r.output))"),
        "victim: not the one with most to do": (VICTIM, "max(self.running, key=lambda r: r.limit - len(r.output))"),
    },
    "05d": {
        "a chat has its first token in time: slots": (": 11,", ": 5,"),
        "a chat does not wait for a document": ("shortest_first", "fcfs"),
        "nor where no request has a priority": ("shortest_first", "priority"),
        "nor where all are of one tenant": ("shortest_first", "fair"),
        "a prompt has tokens of a step": (": 32,", ": 12,"),
        "later tokens come in time: 20 ms and 2 ms for each": (": 11,", ": 16,"),
        "and 0.4 ms for each token of a prompt": (": 32,", ": 256,"),
        "in pieces of a document that are not too large": (": 32,", ": 64,"),
    },
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
    "06b": {
        "the tenant that was served less": (
            "return sorted(waiting, key=lambda request: self.served[request.tenant])",
            "return list(waiting)",
        ),
        "not the one that was served more": (
            "request: self.served[request.tenant])",
            "request: -self.served[request.tenant])",
        ),
        "the tokens of a prompt": ("+= len(request.prompt)", "+= 0"),
        "not its number": ("+= len(request.prompt)", "+= 1"),
        "new tokens": ("+= 2 * tokens", "+= 0"),
        "a new token counts as two": ("+= 2 * tokens", "+= tokens"),
        "not as three": ("+= 2 * tokens", "+= 3 * tokens"),
        "whatever the size of its requests": ("+= len(request.prompt)", "+= 1", "+= 2 * tokens", "+= 0"),
        "a tenant that returns has saved nothing up": ("if tenants and request.tenant not in tenants", "if False"),
        "nor has each arrival": ("max(mine, min(self.served[tenant] for tenant in tenants))", "0"),
        "a policy of your own": ("self.order = Fair()", "self.order = order.Fair()"),
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
    "06d": {
        "propose: the last three": ("LONGEST = 3", "LONGEST = 2"),
        "not four": ("LONGEST = 3", "LONGEST = 4"),
        "the last two": (", 0, -1):", ", 0, -2):"),
        "then the last one": (", 0, -1):", ", 1, -1):"),
        "three before two": ("range(min(LONGEST, len(ids) - 1), 0, -1)", "range(1, min(LONGEST + 1, len(ids)))"),
        "their latest place": ("range(len(ids) - length - 1, -1, -1)", "range(len(ids) - length)"),
        "their earlier place": ("range(len(ids) - length - 1", "range(len(ids) - length"),
        "from the first token on": ("- length - 1, -1, -1)", "- length - 1, 0, -1)"),
        "what followed them": ("ids[at + length : at + length + most]", "ids[at : at + most]"),
        "not what came after that": ("ids[at + length : at", "ids[at + length + 1 : at"),
        "most tokens": ("ids[at + length : at + length + most]", "ids[at + length :]"),
        "not one less": ("length + most]", "length + most - 1]"),
        "most, not four": ("length + most]", "length + 4]"),
        "or fewer where the text ends": ("== end:", "== end and at + length + most <= len(ids):"),
        "new: no draft": ("    return []", "    return ids[:most]"),
        "accept: right ones": ("draft[kept] == chosen[kept]", "True"),
        "the longest beginning": ("    return kept", "    return min(kept, 1)"),
        "not one less of it": ("    return kept", "    return max(0, kept - 1)"),
        "a beginning": ("    return kept", "    return sum(a == b for a, b in zip(draft, chosen))"),
        "chosen[n] after draft[:n]": ("draft[kept] == chosen[kept]", "draft[kept] == chosen[kept + 1]"),
    },
    "07d": {
        "a server is gone": ("up == 0", "up == 2"),
        "a server is gone: within five minutes": ("up == 0\n        for: 1m", "up == 0\n        for: 6m"),
        "a restart: back within a minute": ("up == 0\n        for: 1m", "up == 0\n        for: 0s"),
        "a restart: counters at 0": ("up == 0", "up == 0 or delta(nv_inference_request_success[2m]) < 0"),
        "a process has died": ("> 0.2 *", "> 2 *"),
        "by day and at night": ("> 0.2 *", "> 0.2 + 0 *"),
        "one request in a hundred": ("> 0.2 *", "> 0 *"),
        "a process has died: within five minutes": ("[2m])))\n        for: 1m", "[2m])))\n        for: 6m"),
        "never stops": ("up == 0", "up == 0 or nv_inference_request_failure > 0"),
        "a quiet night": ("up == 0", "up == 0 or rate(nv_inference_request_success[2m]) == 0"),
        "the queue grows": (") > 20", ") > 20000"),
        "the queue grows: within five minutes": ("for: 30s", "for: 6m"),
        "a burst": ("min_over_time(nv_inference_pending_request_count[2m])", "nv_inference_pending_request_count"),
        "a busy day": ("up == 0", "up == 0 or rate(nv_inference_request_success[1m]) > 5"),
    },
    "08b": {
        "running requests come first": ('list(state["running"])', "[]"),
        "in their order": ('list(state["running"])', 'state["running"][::-1]'),
        "the tokens that are left to compute": (
            'request["num_tokens"] - computed, budget',
            'request["num_tokens"], budget',
        ),
        "as far as the budget goes": (
            'min(request["num_tokens"] - computed, budget)',
            'request["num_tokens"] - computed',
        ),
        "each takes its part of the budget": ("free - need, budget - tokens, tokens", "free - need, budget, tokens"),
        "more blocks than it has": ("blocks(computed + tokens) - held", "blocks(computed + tokens)"),
        "than are free": ("need > free", "need >= free"),
        "each takes its blocks": ("free - need,", "free,"),
        "the last is preempted": ("running.pop()", "running.pop(0)"),
        "again and again": ("            continue", "            break"),
        "until they fit": ('free += blocks(victim["num_computed_tokens"])', "free += 0"),
        "if none was preempted": ("preempted or not budget", "not budget"),
        "waiting requests join": ('in state["waiting"]', "in []"),
        "they in their order": ('in state["waiting"]', 'in reversed(state["waiting"])'),
        "while there is budget": ("or not budget or", "or"),
        "they within the budget": ('min(request["num_tokens"], budget)', 'request["num_tokens"]'),
        "while there is a place": ('len(running) == state["max_num_seqs"]', "False"),
        "every place": ('len(running) == state["max_num_seqs"]', 'len(running) + 1 == state["max_num_seqs"]'),
        "each takes a place": ("        running.append(request)\n", ""),
        "the first that does not fit ends this": ("            break", "            continue"),
        "for all its tokens": (
            'blocks(request["num_tokens"]) > free',
            'blocks(min(request["num_tokens"], budget)) > free',
        ),
        "for these, and no more": ('blocks(request["num_tokens"]) > free', 'blocks(request["num_tokens"]) >= free'),
        "those that joined hold blocks": ("free - blocks(tokens), budget", "free, budget"),
    },
    "08d": {
        "what waits too long is rejected": ('        return "reject"', '        return "wait"'),
        "not what can be in time": ('<= state["tpot_ms"] else "wait"', '<= state["tpot_ms"] else "reject"'),
        "the limit of TTFT": ('state["arrived"] + state["ttft_ms"]', 'state["arrived"] + 2 * state["ttft_ms"]'),
        "since it arrived": ('state["now"] + first > state["arrived"]', "first > 0"),
        "the limit of TPOT": ('<= state["tpot_ms"]', '<= 1.3 * state["tpot_ms"]'),
        "up to the limit": ('<= state["tpot_ms"]', '<= 0.8 * state["tpot_ms"]'),
        "nothing is let in": ('"admit" if', '"wait" if'),
        "a step": ('state["step_ms"] + each', "each"),
        "what runs": ('(state["running"] + 1)', '(state["ahead"] + 1)'),
        "each decoding request": ('each = state["decode_ms"] + ', "each = "),
        "a token of a prompt": (' + state["prompt_token_ms"] * state["prompt"] / state["answer"]', ""),
        "for all of its answer": ('* state["prompt"] / state["answer"]', '* state["prompt"]'),
        "a constant number": ('each * (state["running"] + 1) <= state["tpot_ms"]', '0 <= 0 and state["running"] < 4'),
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


def answer(exercise: Exercise, rule: str) -> dict[str, str]:
    """The files of the solution without a rule; "": with all of them."""
    texts, words = exercise.texts("solution"), MUTANTS[exercise.id][rule] if rule else ()
    for old, new in zip(words[::2], words[1::2], strict=True):
        (name,) = (name for name, text in texts.items() if old in text)
        texts[name] = texts[name].replace(old, new)
    return texts


@cache
def check_of(id: str) -> Any:
    """An exercise's check, read once: what it has found out for a seed serves all answers."""
    return runpy.run_path(str(find_exercise(EXERCISES, id).folder / "check.py"))[PARTS.get(id, "check")]


@pytest.fixture
def tools(request: pytest.FixtureRequest, id: str) -> None:
    """What else an exercise's check needs."""
    if id == "07d":
        request.getfixturevalue("promtool")


def failures(id: str, rule: str, folder: Path, seed: int) -> list[str]:
    exercise = find_exercise(EXERCISES, id)
    for name, text in answer(exercise, rule).items():
        (folder / name).write_text(text)
    trial = CountingTrial(exercise, folder, seed)
    check_of(id)(trial)
    return [sentence for ok, sentence in trial.checks if not ok]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("id", "rule"),
    [
        pytest.param(id, rule, marks=[pytest.mark.night] * (id in SLOW))
        for id, rules in MUTANTS.items()
        for rule in rules
    ],
)
def test_without_a_rule_of_the_task_no_answer_passes(
    tmp_path: Path, tools: None, id: str, rule: str, seed: int
) -> None:
    assert failures(id, rule, tmp_path, seed), f"{rule}: passes"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("id", MUTANTS)
def test_the_reference_passes_with_every_seed(tmp_path: Path, tools: None, id: str, seed: int) -> None:
    assert failures(id, "", tmp_path, seed) == []
