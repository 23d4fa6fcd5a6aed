"""One request of low priority, and a steady stream of high ones: how many overtake it?"""

from labkit.exhibit import ExhibitServer, Observation

LATER, QUEUED, ENOUGH = 40, 8, 10  # high ones that come after the low one; in the queue at a time; until it ages


def reproduce(server: ExhibitServer) -> Observation:
    high = [server.send("work", 0.05, priority=1) for _ in range(QUEUED)]  # Triton hands out a few ahead of time
    server.wait(lambda: any(answer.done.is_set() for answer in high), "the first is served")  # else low may be that one
    low = server.send("work", 0.05)
    while len(high) < LATER + QUEUED and not low.done.is_set():
        server.wait(lambda: sum(answer.done.is_set() for answer in high) > len(high) - QUEUED, "a high one is served")
        high.append(server.send("work", 0.05, priority=1))
        if server.workaround and len(high) == QUEUED + ENOUGH:  # ageing, by the client
            low.cancel()
            low = server.send("work", 0.05, priority=1)
    overtook = sum(answer.done.is_set() for answer in high[QUEUED:])
    what = "was served after" if low.ok else "still waited after"
    server.wait(lambda: all(answer.done.is_set() for answer in high), "the stream's end")
    return Observation(overtook >= LATER - QUEUED, f"the low one {what} {overtook} of {LATER} that came later")
