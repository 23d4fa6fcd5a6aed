"""A gate before vLLM, by the learner's rule: the tokens of the requests that were within both limits (goodput).

The learner's decisions are played in counted time. The admitted requests are then sent to the server, each after as
many steps, and the step log says in which step each token came. So a busy machine changes nothing.
"""

from collections import Counter

from labkit.names import letter
from labkit.stats import Slo
from labsched import admission, admission_file
from labsched.counted_time import ComputedStep, Cost, latencies

RUNNING = (8, 11)  # requests that may run within TPOT
ENOUGH = 0.95  # of the reference's goodput
PROMPT, ANSWER = (10, 30), (12, 36)  # tokens
PHASES = ((0.5, 8, 0), (0.5, 6, 18), (0.5, 6, 18), (2.0, 36, 0), (0.5, 8, 0))  # load, requests, a crowd before them
CAUSES = {
    "slow": "tokens come too slowly: too many requests run at once. How many may run within the limit of TPOT?",
    "late": "requests were admitted that could not be in time any more: they take the place of requests that could.",
    "rejected with room": "requests were rejected although few ran: what was full a while ago may have room by now.",
    "rejected early": "requests were rejected that could have waited: "
    "a crowd is served within the limit of TTFT, bit by bit.",
    "held back": "requests waited until they were late, although more could run within the limit of TPOT: "
    "count the cost of one request more, and admit up to the limit.",
    "held to the end": "requests were held to the end: "
    "a request that cannot be in time is rejected, so that its user knows.",
}


def check(trial):
    load = load_of(trial.rng)
    decisions = trial.call(
        admission_file.__file__,
        "decisions",
        str(trial.folder),
        load.requests,
        [load.cost.step, load.cost.decode, load.cost.prompt],
        [load.slo.ttft, load.slo.tpot],
    )
    error = decisions.get("error", "")
    if not trial.expect("admission.py", "decides", error or "decides", not error, f"{error}."):
        return
    played = admission.replay_decisions(load, {number: (at, word) for number, at, word in decisions["rounds"]})
    found = served(trial, load, played)
    goodput = sum(load.requests[number].answer for number in found if load.slo.is_met(*found[number]))
    best = admission.play_load(load, reference)
    reached = counted(load, best)
    most = sum(load.requests[number].answer for number in reached if load.slo.is_met(*reached[number]))
    lost, first = losses(load, played, found)
    if sum(lost.values()) < (most - goodput) / 2:  # the rest came too late to be admitted: why, where so few were lost?
        lost["held back"] = most - goodput
    shown = ", ".join(f"{word} {count}" for word, count in sorted(lost.items())) or "none"
    cause = lost.most_common(1)[0][0] if lost else "held back"
    shown += f"\n{first[cause]}" if cause in first else ""
    trial.expect(
        "goodput in tokens",
        f"{ENOUGH * most:,.0f} ({ENOUGH:.0%} of {most:,})",
        f"{goodput:,} of {sum(request.answer for request in load.requests):,}\nlost: {shown}",
        goodput >= ENOUGH * most,
        CAUSES[cause],
    )


def reference(state):
    """Reject requests that can no longer be in time; admit while running ones stay within TPOT; hold the others."""
    share = state["decode_ms"] + state["prompt_token_ms"] * state["prompt"] / state["answer"]
    first = state["step_ms"] + state["running"] * state["decode_ms"] + state["prompt_token_ms"] * state["prompt"]
    if state["now"] + first > state["arrived"] + state["ttft_ms"]:
        return "reject"
    return "admit" if state["step_ms"] + (state["running"] + 1) * share <= state["tpot_ms"] else "wait"


def served(trial, load, played):
    """TTFT and TPOT of each admitted request, by the server's steps."""
    order = sorted(played.after, key=lambda number: (played.after[number], number))
    if not order:
        return {}
    requests = []
    for number in order:
        _, prompt, answer = load.requests[number]
        requests.append(([trial.rng.randint(5, 1200) for _ in range(prompt)], answer))
    after = [played.after[number] for number in order]
    first = after.count(0)
    records, steps = trial.send_queued(requests[:first], list(zip(after, requests, strict=True))[first:])
    return from_arrival(
        load, played, order, [record.id for record in records], [ComputedStep.of(step) for step in steps]
    )


def counted(load, played):
    """The same, counted without a server."""
    left, batches, order = {}, [], sorted(played.after, key=lambda number: (played.after[number], number))
    coming = list(order)
    while coming or left:
        joined = [number for number in coming if played.after[number] <= len(batches)]
        coming = coming[len(joined) :]
        ids, prompts = [*left, *joined], [load.requests[number].prompt for number in joined]
        phase, tokens = "d" * len(left) + "p" * len(joined), [1] * len(left) + prompts
        batches.append(ComputedStep([f"{number}" for number in ids], phase, tokens, [1] * len(ids)))
        left |= {number: load.requests[number].answer for number in joined}
        left = {number: more - 1 for number, more in left.items() if more > 1}
    return from_arrival(load, played, order, [f"{number}" for number in order], batches)


def from_arrival(load, played, order, ids, batches):
    """TTFT counts from the arrival at the gate."""
    times = latencies(batches, ids, [played.released[number] for number in order], load.cost)
    return {
        number: (ttft + played.released[number] - load.requests[number].arrived, tpot)
        for number, (ttft, tpot) in zip(order, times, strict=True)
    }


def losses(load, played, found):
    """Tokens of the requests that missed a limit, by cause, and the first request of each cause in words.

    A rejected request that could no longer be in time is not a loss.
    """
    lost, first = Counter(), {}

    def lose(cause, number, how):
        request = load.requests[number]
        lost[cause] += request.answer
        first.setdefault(cause, f"first: request {letter(number)}, at the gate at {request.arrived:.0f} ms, {how}")

    for number, request in enumerate(load.requests):
        if number in found:
            ttft, tpot = found[number]
            if not load.slo.is_met(ttft, tpot):
                how = f"admitted at {played.released[number]:.0f} ms: TTFT {ttft:.0f} ms, TPOT {tpot:.1f} ms"
                lose("late" if ttft > load.slo.ttft else "slow", number, how)
        elif number in played.rejected:
            now, running = played.rejected[number]
            how = f"rejected at {now:.0f} ms, with {running} running"
            early, room = now < request.arrived + 0.7 * load.slo.ttft, running < RUNNING[0] * 0.7
            if early or room:
                lose("held back" if not early else "rejected with room" if room else "rejected early", number, how)
        else:
            lose("held to the end", number, "neither admitted nor rejected")
    return lost, first


def load_of(rng):
    """Quiet times, crowds, and a while of twice what can be served; costs and limits differ from seed to seed."""
    cost = Cost(rng.uniform(15, 25), rng.uniform(2, 4), rng.uniform(0.2, 0.5))
    prompt, answer = sum(PROMPT) / 2, sum(ANSWER) / 2
    running = rng.randint(*RUNNING)
    tpot = round(cost.step + (running + 0.6) * (cost.decode + cost.prompt * prompt / answer))
    gap = answer * tpot / running  # between requests, at the most that can be served
    requests, now = [], 0.0
    for share, count, crowd in PHASES:
        times = [now + rng.random() for _ in range(crowd)]
        for _ in range(count):
            now += gap / share * rng.uniform(0.5, 1.5)
            times.append(now)
        requests += [admission.GatedRequest(at, rng.randint(*PROMPT), rng.randint(*ANSWER)) for at in sorted(times)]
    return admission.AdmissionLoad(requests, cost, Slo(ttft=round(rng.uniform(26, 32) * tpot), tpot=tpot))
