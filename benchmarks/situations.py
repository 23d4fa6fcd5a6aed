"""What operators of vLLM report, as loads whose truth is known: why p99 is bad, and who waits for whom.

Each is a load and the settings of a server (:mod:`benchmarks.virtual_vllm`), in figures of a 7B model on one H100.
``report`` says where such a complaint was read: issues of vLLM's tracker by number, else its documentation's or forum's
usual questions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.virtual_vllm import Device, Sent, fresh_prompt
from labsched.explain.causes import FRONT_END, HELD, NO_BLOCK, NO_SLOT, NO_TOKENS, PREEMPTED, PREFILL, PROMPTS

MEMORY, PROMPT_WORK = (NO_BLOCK, PREEMPTED), (NO_TOKENS, PROMPTS)


@dataclass(frozen=True)
class Situation:
    """A load on a server, and what is true about it.

    Attributes:
        loads: one for each rank of data parallelism; mostly one.
        causes: the first sentence has to name one of these parts.
        victims: the class that the first sentence must be about: words that its title holds; "": all requests.
        behind: the class that they wait for, likewise.
        lost: whether the first sentence is about requests without a token.
        prefixes: words that the sentence about the prefix cache must hold; "": none is needed.
        in_flight: of a closed loop.
        memory: whether the device has room for more KV blocks.
    """

    report: str
    loads: Sequence[Sequence[Sent]]
    causes: Sequence[str]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    victims: str = ""
    behind: str = ""
    lost: bool = False
    prefixes: str = ""
    in_flight: int | None = None
    device: Device = field(default_factory=Device)


def poisson(
    chance: random.Random,
    count: int,
    rate: float,
    prompt: Callable[[], Sequence[int]],
    output: Callable[[], int],
    **more: Any,
) -> list[Sent]:
    """Requests at random times, ``rate`` a second."""
    found, now = list[Sent](), more.pop("begin", 0.0)
    kind = more.pop("kind", "r")
    for number in range(count):
        found.append(Sent(f"{kind}{number}", now, prompt(), output(), **more))
        now += chance.expovariate(rate)
    return found


def chats(
    chance: random.Random, count: int, rate: float, prompt: int = 200, output: tuple[int, int] = (50, 350), **more: Any
) -> list[Sent]:
    """Requests whose prompts have nothing in common."""
    return poisson(chance, count, rate, lambda: fresh_prompt(chance, prompt), lambda: chance.randint(*output), **more)


def every(
    seconds: float,
    count: int,
    each: int,
    chance: random.Random,
    prompt: int,
    output: int,
    begin: float = 0.0,
    kind: str = "long",
    **more: Any,
) -> list[Sent]:
    """``each`` requests at once, every so many seconds."""
    return [
        Sent(f"{kind}{turn}-{n}", begin + turn * seconds, fresh_prompt(chance, prompt), output, **more)
        for turn in range(count)
        for n in range(each)
    ]


def situations() -> dict[str, Callable[[], Situation]]:
    """Each by its name; made when it is asked for."""
    return {name.removeprefix("_").replace("_", "-"): made for name, made in globals().items() if name in NAMES}


def _slots() -> Situation:
    load = chats(random.Random(1), 110, 4.6)
    return Situation("13508: low KV cache usage, many pending", [load], [NO_SLOT], {"max_num_seqs": 8})


def _slots_at_the_limit() -> Situation:
    load = chats(random.Random(2), 200, 17.0, output=(100, 300))
    return Situation("256 chats at once: nearly enough slots", [load], [NO_SLOT], {"max_num_seqs": 32})


def _closed_loop() -> Situation:
    load = chats(random.Random(3), 240, 1e6, output=(60, 140))
    return Situation("64 clients on 16 slots", [load], [NO_SLOT], {"max_num_seqs": 16}, in_flight=64)


def _small_budget() -> Situation:
    load = chats(random.Random(4), 50, 0.9, prompt=4000, output=(20, 50))
    return Situation(
        "prompts of 4,000 in steps of 256", [load], [*PROMPT_WORK, PREFILL], {"max_num_batched_tokens": 256}
    )


def _long_among_chat() -> Situation:
    chance = random.Random(5)
    load = chats(chance, 130, 6.0, output=(50, 150)) + every(5.0, 4, 3, chance, 7000, 20, begin=1.0)
    arguments = {"max_num_batched_tokens": 8192}
    return Situation(
        "21495: long prompts among chat", [load], PROMPT_WORK, arguments, victims="200 tokens", behind="7,000 tokens"
    )


def _very_long_among_chat() -> Situation:
    chance = random.Random(6)
    load = chats(chance, 180, 8.0, output=(50, 150)) + every(9.0, 2, 1, chance, 30_000, 20, begin=4.0)
    return Situation(
        "57413: very long prompts block short ones", [load], PROMPT_WORK, victims="200 tokens", behind="30,000 tokens"
    )


def _documents_and_chat() -> Situation:
    chance = random.Random(7)
    load = chats(chance, 110, 5.0, prompt=120, output=(50, 150))
    load += poisson(chance, 22, 1.0, lambda: fresh_prompt(chance, 6000), lambda: 200, kind="doc")
    return Situation("summaries slow the chat", [load], PROMPT_WORK, victims="120 tokens", behind="6,000 tokens")


def _preemption() -> Situation:
    load = chats(random.Random(8), 50, 4.0, prompt=500, output=(400, 700))
    return Situation("18115: running out of KV cache", [load], MEMORY, {"num_gpu_blocks_override": 801})


def _kv_nearly_full() -> Situation:
    chance = random.Random(9)
    load = poisson(
        chance, 80, 1e6, lambda: fresh_prompt(chance, chance.randint(150, 450)), lambda: chance.randint(150, 900)
    )
    return Situation(
        "44594: KV cache nearly full, long answers",
        [load],
        MEMORY,
        {"num_gpu_blocks_override": 1001, "max_num_seqs": 64},
        in_flight=40,
    )


def _slots_not_memory() -> Situation:
    load = chats(random.Random(10), 50, 1.6, prompt=500, output=(400, 600))
    arguments = {"max_num_seqs": 8, "num_gpu_blocks_override": 701}
    return Situation("8 slots, memory for a few more", [load], [NO_SLOT], arguments)


def _changing_first_token() -> Situation:
    chance = random.Random(11)
    system = fresh_prompt(chance, 3000)
    load = poisson(chance, 130, 9.5, lambda: [chance.randrange(32_000), *system, *fresh_prompt(chance, 40)], lambda: 20)
    return Situation(
        "31920: hit rate 0; here a timestamp before the system prompt",
        [load],
        PROMPT_WORK,
        prefixes="in their first block",
    )


def _no_prefix_caching() -> Situation:
    chance = random.Random(12)
    system = fresh_prompt(chance, 3000)
    load = poisson(chance, 130, 9.5, lambda: [*system, *fresh_prompt(chance, 40)], lambda: 20)
    arguments = {"enable_prefix_caching": False}
    return Situation("a shared system prompt, caching off", [load], PROMPT_WORK, arguments, prefixes="is off")


def _evicted_sessions() -> Situation:
    """Thirty users in turn, each with a document of 4,000 tokens; the cache holds two thirds of them."""
    chance = random.Random(13)
    documents = [fresh_prompt(chance, 4000) for _ in range(30)]
    load, now = list[Sent](), 0.0
    for number in range(130):
        prompt = [*documents[number % 30], *fresh_prompt(chance, 30)]
        load.append(Sent(f"r{number}", now, prompt, 10))
        now += chance.expovariate(7.5)
    arguments = {"num_gpu_blocks_override": 5001}
    return Situation("multi-turn chats lose their cache", [load], PROMPT_WORK, arguments, prefixes="evicted")


def _bursts() -> Situation:
    chance = random.Random(14)
    load = every(15.0, 2, 100, chance, 300, 60, kind="r")
    return Situation("cron jobs send 150 at once", [load], [*PROMPT_WORK, NO_SLOT])


def _many_prompts_at_once() -> Situation:
    load = every(3.0, 6, 16, random.Random(15), 1000, 20, kind="r")
    return Situation("33743: many prompts at once", [load], PROMPT_WORK, {"max_num_batched_tokens": 8192})


def _flood() -> Situation:
    chance = random.Random(16)
    load = chats(chance, 60, 4.0, output=(60, 120))
    load += [Sent(f"bulk{n}", 4.0 + n * 0.005, fresh_prompt(chance, 1500), 300) for n in range(60)]
    arguments = {"max_num_seqs": 16}
    return Situation("one tenant floods", [load], [NO_SLOT], arguments, victims="200 tokens", behind="1,500 tokens")


def _flood_with_priorities() -> Situation:
    load = [replace(one, priority=2 if one.name.startswith("bulk") else 1) for one in _flood().loads[0]]
    arguments = {"max_num_seqs": 16, "scheduling_policy": "priority"}
    return Situation("the same, with priorities", [load], [NO_SLOT], arguments)


def _priority_inversion() -> Situation:
    load = [replace(one, priority=2 if one.name.startswith("bulk") else 1) for one in _flood().loads[0]]
    load = [replace(one, prompt=one.prompt[:200]) for one in load]
    arguments = {"max_num_seqs": 16}
    return Situation("urgent requests wait for batch jobs", [load], [NO_SLOT], arguments, victims="1", behind="2")


def _stall() -> Situation:
    load = chats(random.Random(18), 110, 5.0)
    device = Device(pauses=((8.0, 2.0), (16.0, 2.0)))
    return Situation("the GPU stands still twice", [load], [HELD], device=device)


def _unequal_ranks() -> Situation:
    chance = random.Random(19)
    loads = [chats(chance, 100, 5.5), chats(chance, 20, 1.0)]
    return Situation("36748: waiting requests on a few data parallel ranks", loads, [NO_SLOT], {"max_num_seqs": 8})


def _stop_strings() -> Situation:
    load = [replace(one, stops=True) for one in chats(random.Random(20), 110, 4.6)]
    return Situation("answers end with a stop string", [load], [NO_SLOT], {"max_num_seqs": 8})


def _front_end() -> Situation:
    load = [replace(one, front=0.4) for one in chats(random.Random(21), 100, 6.0, output=(50, 150))]
    return Situation("400 ms of tokenizing", [load], [FRONT_END])


def _impatient() -> Situation:
    """Eight long answers take all slots for nine seconds; the clients of the others leave after two."""
    chance = random.Random(22)
    load = [Sent(f"long{n}", 0.01 * n, fresh_prompt(chance, 200), 900) for n in range(8)]
    load += [replace(one, patience=2.0) for one in chats(chance, 70, 6.0, output=(20, 60), begin=0.2)]
    return Situation("clients leave after 2 s, many without a token", [load], [NO_SLOT], {"max_num_seqs": 8}, lost=True)


def _impatient_but_answered() -> Situation:
    load = [replace(one, patience=2.5) for one in chats(random.Random(23), 130, 6.0, output=(100, 500))]
    return Situation("clients leave in mid-answer", [load], [NO_SLOT], {"max_num_seqs": 12})


def _threshold_too_small() -> Situation:
    chance = random.Random(24)
    load = chats(chance, 110, 5.0, output=(50, 150), kind="r") + poisson(
        chance, 9, 0.5, lambda: fresh_prompt(chance, 12_000), lambda: 50, kind="doc"
    )
    arguments = {"long_prefill_token_threshold": 64}
    return Situation("long prompts take for ever", [load], [PREFILL, *PROMPT_WORK], arguments, victims="12,000 tokens")


def _high_watermark() -> Situation:
    load = chats(random.Random(25), 100, 5.0, prompt=500, output=(200, 400))
    arguments = {"watermark": 0.4, "num_gpu_blocks_override": 1201}
    return Situation("requests wait while 40 % of the cache is free", [load], MEMORY, arguments)


def _whole_prompts() -> Situation:
    chance = random.Random(26)
    load = chats(chance, 130, 6.0, output=(50, 150)) + every(5.0, 4, 2, chance, 12_000, 20, begin=1.0)
    arguments = {"enable_chunked_prefill": False, "max_num_batched_tokens": 40_000}
    return Situation("no chunked prefill", [load], PROMPT_WORK, arguments, victims="200 tokens", behind="12,000 tokens")


def _prefill_bound() -> Situation:
    load = chats(random.Random(27), 80, 5.9, prompt=6000, output=(10, 30))
    return Situation("retrieval: prompts of 6,000 near the limit", [load], PROMPT_WORK)


def _quiet() -> Situation:
    load = chats(random.Random(28), 50, 0.5, prompt=1000, output=(30, 80))
    return Situation("one request at a time: nothing is wrong", [load], [PREFILL])


def _decode_heavy() -> Situation:
    load = chats(random.Random(29), 260, 40.0, prompt=100, output=(200, 300))
    return Situation("17598: TPOT grows with the batch", [load], [*PROMPT_WORK, PREFILL, "the step in progress"])


def _front_end_and_slots() -> Situation:
    load = [replace(one, front=0.15) for one in chats(random.Random(30), 110, 4.6)]
    return Situation("a slow front end, and too few slots", [load], [NO_SLOT], {"max_num_seqs": 8})


NAMES = [name for name in globals() if name.startswith("_") and not name.startswith("__")]
