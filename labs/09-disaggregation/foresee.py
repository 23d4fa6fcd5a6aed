"""What two servers would do, by their paces alone: the same loop as the model's, in virtual time.

A step takes `step_ms`, and `token_ms` for each token of the prompts that join in it. Nothing else takes time: what the
measurement has beyond this is the machine's, the network's and the handing over.
"""

from collections import deque


def serve(requests, step_ms, token_ms, slots):
    """The moments in ms of each request's tokens on one server.

    `requests` are (arrival in ms, tokens of the prompt to compute, tokens of the answer), in the order of arrival.
    """
    coming = deque(enumerate(requests))
    moments = [[] for _ in requests]
    waiting, running = deque(), []
    now = 0.0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0][1][0])
        while coming and coming[0][1][0] <= now:
            waiting.append(coming.popleft()[0])
        joining = [waiting.popleft() for _ in range(min(len(waiting), slots - len(running)))]
        running += joining
        now += step_ms + token_ms * sum(requests[number][1] for number in joining)
        for number in running:
            moments[number].append(now)
        running = [number for number in running if len(moments[number]) < requests[number][2]]
    return moments


def together(requests, step_ms, token_ms, slots):
    """Two servers that take requests in turn; the moments of each request's tokens."""
    moments = [[] for _ in requests]
    for server in (0, 1):
        numbers = range(server, len(requests), 2)
        for number, one in zip(numbers, serve([requests[n] for n in numbers], step_ms, token_ms, slots), strict=True):
            moments[number] = one
    return moments


def apart(requests, step_ms, token_ms, slots):
    """One server that computes prompts, and one that decodes."""
    firsts = serve([(at, prompt, 1) for at, prompt, _ in requests], step_ms, token_ms, slots)
    order = sorted(range(len(requests)), key=lambda number: firsts[number][0])
    rest = serve([(firsts[number][0], 0, requests[number][2] - 1) for number in order], step_ms, token_ms, slots)
    later = dict(zip(order, rest, strict=True))
    return [firsts[number] + later[number] for number in range(len(requests))]


def times(requests, moments):
    """(TTFT, TPOT) of each request in ms."""
    return [
        (each[0] - at, (each[-1] - each[0]) / max(1, len(each) - 1))
        for (at, _, _), each in zip(requests, moments, strict=True)
    ]


def met(pairs, ttft_ms, tpot_ms):
    """The share of requests within both limits."""
    return sum(ttft <= ttft_ms and tpot <= tpot_ms for ttft, tpot in pairs) / len(pairs)
