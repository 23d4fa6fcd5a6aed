"""One request of low priority, and a steady stream of high ones: how many overtake it?"""

from labkit.exhibit import Found, Server

HIGH, QUEUED, ENOUGH = 40, 3, 10


def reproduce(server: Server) -> Found:
    running = server.send("work", 0.5)
    low = server.send("work", 0.05)
    high = [server.send("work", 0.05, priority=1) for _ in range(QUEUED)]
    while len(high) < HIGH and not low.done.is_set():
        server.wait(lambda: sum(answer.done.is_set() for answer in high) > len(high) - QUEUED, "a high one is served")
        high.append(server.send("work", 0.05, priority=1))
        if server.workaround and len(high) == ENOUGH:  # ageing, by the client
            low.cancel()
            low = server.send("work", 0.05, priority=1)
    overtook = sum(answer.done.is_set() for answer in high)
    what = "was served after" if low.ok else "still waited after"
    server.wait(lambda: running.done.is_set() and all(answer.done.is_set() for answer in high), "the stream's end")
    return Found(overtook >= HIGH - QUEUED, f"the low one {what} {overtook} of {HIGH} that came later")
