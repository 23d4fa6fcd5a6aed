"""Lab 08's client: the same requests to either scheduler, all in its queue before the first step.

Run by ``labctl run vllm``, once for each phase: vLLM and ours, without a prefix cache and then with one.
"""

import random
import sys
from typing import NamedTuple

from labkit.client import context, trtllm
from labkit.client.trtllm import BLOCK, EngineStream, steps_of
from labkit.errors import LabError
from labkit.evidence.records import Lane

USUAL, URGENT = 2, 1  # request_priority
LONG, READER = 200, 16  # prompt tokens of the two requests of `chunked`
KNOWN = 2 * BLOCK + BLOCK // 2  # tokens of a beginning: two blocks and a half


class Ask(NamedTuple):
    name: str
    ids: list[int]
    tokens: int  # of the answer
    priority: int = USUAL


def main() -> None:
    lab = context.load_context(sys.argv[1])
    rng = random.Random(8)

    def ids(count):
        return [rng.randrange(5, 1200) for _ in range(count)]

    urgent = [Ask(f"usual{n}", ids(40), 60) for n in range(1, 5)]
    urgent += [Ask(f"urgent{n}", ids(40), 40, URGENT) for n in range(1, 4)]
    with EngineStream(lab.endpoints["grpc"]) as stream:
        if lab.settings.get("enable_kv_cache_reuse"):  # transformers has no such thing
            known, beside = ids(KNOWN), ids(KNOWN)
            repeats = [Ask("first", known, 1), Ask("again", known, 1), Ask("longer", known + ids(BLOCK), 1)]
            pair = [Ask("one", beside + ids(20), 2), Ask("other", beside + ids(24), 2)]
            parts = {"prefix": [[ask] for ask in repeats] + [pair], "urgent": [urgent]}
        else:
            chunked = [Ask("reader", ids(READER), 24), Ask("long", ids(LONG), 4)]
            parts = {"trace": [yours(lab.settings, ids)], "chunked": [chunked], "urgent": [urgent]}
        data, records = {}, []
        for part, groups in parts.items():
            done = [together(lab, stream, asks) for asks in groups]
            records += [record for those, _ in done for record in those]
            data[part] = {
                "asked": {ask.name: [len(ask.ids), ask.tokens] for asks in groups for ask in asks},
                "steps": [step for _, steps in done for step in steps],
            }
            print(f"{lab.phase}, {part}: {len(data[part]['steps'])} steps", flush=True)
    lab.finish({"parts": data, **Lane(lab.phase, records, lab.steps(trtllm.MODEL, records)).to_json()}, records)


def yours(settings, ids):
    """The requests of `prompts` and `answers`. Raises LabError where they are not of one length, or too long."""
    prompts, answers, room = settings["prompts"], settings["answers"], settings["max_tokens_in_paged_kv_cache"]
    if len(prompts) != len(answers):
        raise LabError(
            f"prompts has {len(prompts)} numbers, and answers has {len(answers)}",
            "each request needs both",
            code="prompts-invalid",
        )
    lengths = list(zip(prompts, answers, strict=True))
    if room and (longest := max(map(sum, lengths))) > room:
        raise LabError(
            f"a request of {longest} tokens does not fit into max_tokens_in_paged_kv_cache={room}",
            code="prompts-too-long",
        )
    return [Ask(f"r{n}", ids(prompt), answer) for n, (prompt, answer) in enumerate(lengths, 1)]


def together(lab, stream, asks):
    """Stop the clock, send all, and let it go on; the records, and what each step did, by the requests' names."""
    lab.act("pause").done()
    records = [stream.ask(ask.ids, ask.tokens, ask.name, request_priority=ask.priority) for ask in asks]
    for record, ask in zip(records, asks, strict=True):
        record.label = ask.name  # by which `labctl explain` finds it
    lab.act("run", model=trtllm.MODEL, requests=len(asks)).done(timeout=180)
    stream.wait(*records, timeout=600)
    names = {record.id: record.label for record in records}
    return records, [row(step, names) for step in steps_of(lab, records) if names.keys() & {*step.ids}]


def row(step, names):
    """A step as the lessons read it. A request that joined without a computed token is not in it."""
    computed = {names[id]: count for id, count in zip(step.ids, step.tokens, strict=True) if count}
    found = step.found
    return {
        "computed": computed,
        "found": {names[id]: count for id, count in zip(step.ids, found, strict=True) if count},
        "waiting": [names[id] for id in step.waiting],
        "preempted": [names[id] for id in step.evicted],
        "why": step.why,
        "because": step.because or {},
    }


if __name__ == "__main__":
    main()
