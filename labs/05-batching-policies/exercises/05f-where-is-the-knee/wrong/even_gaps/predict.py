"""The highest rate of requests that keeps the limits, from a recording: found before any such load is run."""

SHARE = 0.9  # of the requests must be within both limits


def knee(recording):
    """Requests per second. What a recording holds is in task.md."""
    low, high = 0.0, 100.0
    for _ in range(14):
        rate = (low + high) / 2
        low, high = (rate, high) if good(recording, rate) >= SHARE else (low, rate)
    return low


def good(recording, rate):
    """The share of requests within both limits if ``rate`` come per second."""
    arrived, came = replay(recording, rate)
    within = 0
    for at, tokens in zip(arrived, came, strict=True):
        tpot = (tokens[-1] - tokens[0]) / max(1, len(tokens) - 1)
        within += tokens[0] - at <= recording["ttft_ms"] and tpot <= recording["tpot_ms"]
    return within / len(arrived)


def replay(recording, rate):
    """When each request arrives, and when each of its tokens is there, in ms."""
    now, arrived = 0.0, []
    for _ in recording["gaps"]:
        now += 1000 / rate
        arrived.append(now)
    came = [[] for _ in arrived]
    waiting, running, now = list(range(len(arrived))), [], 0.0
    while waiting or running:
        if not running:
            now = max(now, arrived[waiting[0]])
        new = []
        while waiting and arrived[waiting[0]] <= now and len(running) + len(new) < recording["slots"]:
            new.append(waiting.pop(0))
        prompts = sum(recording["requests"][number][0] for number in new)
        now += recording["step_ms"] + recording["decode_ms"] * len(running) + recording["prompt_token_ms"] * prompts
        running += new
        for number in running:
            came[number].append(now)
        running = [number for number in running if len(came[number]) < recording["requests"][number][1]]
    return arrived, came
