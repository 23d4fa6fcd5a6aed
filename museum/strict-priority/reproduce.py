"""One request of low priority, and high ones that come later: how many overtake it?

The first request holds the only instance until all others are in the queue, as Triton's own count shows. So the order
in which they are served is the queue's alone, however slow this client is.
"""

from labkit.exhibit import Answer, CannotTell, Found, Server

BEFORE, LATER, ENOUGH = 8, 40, 10  # high ones before the low one, and after it; of these before it ages
HOLDS_S = (2.0, 8.0, 32.0)  # how long the first one holds the instance: longer, if the others came too late


def reproduce(server: Server) -> Found:
    server.infer("work")  # on a new connection the first requests may change places
    for seconds in HOLDS_S:
        first = server.send("work", seconds, priority=1)
        before = [server.send("work", priority=1) for _ in range(BEFORE)]  # Triton hands out a few ahead of time
        queued(server, first, BEFORE)
        low = server.send("work")
        queued(server, first, BEFORE + 1)
        later = [server.send("work", priority=1) for _ in range(ENOUGH)]
        queued(server, first, BEFORE + 1 + ENOUGH)
        if server.workaround:  # ageing, by the client
            low.cancel()
            low = server.send("work", priority=1)
            queued(server, first, BEFORE + 1 + ENOUGH)
        later += [server.send("work", priority=1) for _ in range(LATER - ENOUGH)]
        queued(server, first, BEFORE + 1 + LATER)
        in_time = not first.done.is_set()
        everything = [first, *before, low, *later]
        server.wait(lambda: all(answer.done.is_set() for answer in everything), "all requests are answered")
        if in_time:
            overtook = sum(answer.value < low.value for answer in later)
            return Found(overtook == LATER, f"the low one was served after {overtook} of {LATER} that came later")
    raise CannotTell(f"the requests did not come within {HOLDS_S[-1]:g} s")


def queued(server: Server, first: Answer, count: int) -> None:
    """Wait until so many requests are in the queue, or the first one has been served."""
    server.wait(lambda: server.counters("work").pending >= count or first.done.is_set(), f"{count} are in the queue")
