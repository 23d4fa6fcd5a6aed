"""A gate before vLLM, by the learner's rule: the tokens of the requests that were within both limits (goodput).

The learner's decisions are played in counted time. The admitted requests are then sent to the server, each after as
many steps, and the step log says in which step each token came. So a busy machine changes nothing.
"""

from collections import Counter
from functools import partial

from labkit.evidence.names import letter
from labsched.costs import StepCosts
from labsched.replay import admission, admission_file
from labsched.replay.counted_time import Latency, counted_arrivals, latencies, time_steps
from labsched.replay.slo import Slo

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
        [(request.prompt, request.limit) for request in load.requests],
        [request.at for request in load.requests],
        {"step": load.cost.step, "decoding": load.cost.decoding, "token": load.cost.token},
        [load.slo.ttft, load.slo.tpot],
    )
    error = decisions.get("error", "")
    if not trial.expect("admission.py", "decides", error or "decides", not error, f"{error}."):
        return
    played = admission.replay_decisions(load, {number: (at, word) for number, at, word in decisions["rounds"]})
    found = served(trial, load, played)
    goodput, most = goodput_of(load, found), goodput_of(load, admission.play_load(load, reference).latencies())
    lost, first = losses(load, played, found)
    if sum(lost.values()) < (most - goodput) / 2:  # the rest came too late to be admitted: why, where so few were lost?
        lost["held back"] = most - goodput
    shown = ", ".join(f"{word} {count}" for word, count in sorted(lost.items())) or "none"
    cause = lost.most_common(1)[0][0] if lost else "held back"
    shown += f"\n{first[cause]}" if cause in first else ""
    trial.expect(
        "goodput in tokens",
        f"{ENOUGH * most:,.0f} ({ENOUGH:.0%} of {most:,})",
        f"{goodput:,} of {sum(request.limit for request in load.requests):,}\nlost: {shown}",
        goodput >= ENOUGH * most,
        CAUSES[cause],
    )
    held = len(load.requests) - len(played.decisions)
    trial.expect("requests held to the end", "0", held, held == 0, CAUSES["held to the end"])


def goodput_of(load, latencies):
    """The tokens of the requests that were within both limits."""
    return sum(load.requests[number].limit for number, times in latencies.items() if load.slo.is_met(*times))


def reference(state, prompts=True):
    """Reject requests that can no longer be in time; admit while running ones stay within TPOT; hold the others.

    ``prompts``: count their time too.
    """
    share = state["decode_ms"] + prompts * state["prompt_token_ms"] * state["prompt"] / state["answer"]
    first = state["step_ms"] + state["running"] * state["decode_ms"] + state["prompt_token_ms"] * state["prompt"]
    if state["now"] + first > state["arrived"] + state["ttft_ms"]:
        return "reject"
    return "admit" if state["step_ms"] + (state["running"] + 1) * share <= state["tpot_ms"] else "wait"


def served(trial, load, played):
    """TTFT from the arrival at the gate, and TPOT, of each admitted request, by the server's steps."""
    admitted = [(number, one) for number, one in played.decisions.items() if one.word == admission.ADMIT]
    if not admitted:
        return {}
    requests = []
    for number, _ in admitted:
        request = load.requests[number]
        requests.append(([trial.rng.randint(5, 1200) for _ in range(request.prompt)], request.limit))
    after = [decision.after for _, decision in admitted]
    first = after.count(0)
    records, steps = trial.send_queued(requests[:first], list(zip(after, requests, strict=True))[first:])
    released = {record.id: one.at for record, (_, one) in zip(records, admitted, strict=True)}
    times = latencies(time_steps(steps, released, load.cost), released)
    return {
        number: Latency(ttft + decision.at - load.requests[number].at, tpot)
        for (number, decision), (ttft, tpot) in zip(admitted, times, strict=True)
    }


def losses(load, played, found):
    """Tokens of the requests that missed a limit, by cause, and the first request of each cause in words.

    A rejected request that could no longer be in time is not a loss.
    """
    lost, first = Counter(), {}

    def lose(cause, number, how):
        request = load.requests[number]
        lost[cause] += request.limit
        first.setdefault(cause, f"first: request {letter(number)}, at the gate at {request.at:.0f} ms, {how}")

    for number, request in enumerate(load.requests):
        decision = played.decisions.get(number)
        if number in found:
            ttft, tpot = found[number]
            if not load.slo.is_met(ttft, tpot):
                how = f"admitted at {decision.at:.0f} ms: TTFT {ttft:.0f} ms, TPOT {tpot:.1f} ms"
                lose("late" if ttft > load.slo.ttft else "slow", number, how)
        elif decision:
            how = f"rejected at {decision.at:.0f} ms, with {decision.running} running"
            early, room = decision.at < request.at + 0.7 * load.slo.ttft, decision.running < RUNNING[0] * 0.7
            if early or room:
                lose("held back" if not early else "rejected with room" if room else "rejected early", number, how)
        else:
            lose("held to the end", number, "neither admitted nor rejected")
    return lost, first


def load_of(rng):
    """A load on which a rule that forgets the prompts admits too many."""
    while True:
        load = drawn(rng)
        most, without = (
            goodput_of(load, admission.play_load(load, partial(reference, prompts=prompts)).latencies())
            for prompts in (True, False)
        )
        if without < 0.9 * ENOUGH * most:
            return load


def drawn(rng):
    """Quiet times, crowds, and a while of twice what can be served; costs and limits differ from seed to seed."""
    cost = StepCosts(step=rng.uniform(15, 25), decoding=rng.uniform(2, 4), token=rng.uniform(0.2, 0.5))
    prompt, answer = sum(PROMPT) / 2, sum(ANSWER) / 2
    running = rng.randint(*RUNNING)
    tpot = round(cost.step + (running + 0.6) * (cost.decoding + cost.token * prompt / answer))
    gap = answer * tpot / running  # between requests, at the most that can be served
    lengths, arrivals, now = [], [], 0.0
    for share, count, crowd in PHASES:
        times = [now + rng.random() for _ in range(crowd)]
        for _ in range(count):
            now += gap / share * rng.uniform(0.5, 1.5)
            times.append(now)
        arrivals += sorted(times)
        lengths += [(rng.randint(*PROMPT), rng.randint(*ANSWER)) for _ in times]
    limits = Slo(ttft=round(rng.uniform(26, 32) * tpot), tpot=tpot)
    return admission.AdmissionLoad(counted_arrivals(lengths, arrivals), cost, limits)
