"""A fast producer before a slow consumer: how many responses pile up between them?"""

from labkit.exhibit import ExhibitServer, Observation

CHUNKS, SAFE = 2000, 16


def reproduce(server: ExhibitServer) -> Observation:
    peak = 0.0

    def look() -> bool:
        nonlocal peak
        peak = max(peak, server.counters("consumer").pending)
        return server.counters("producer").succeeded >= 1 or server.counters("producer").exec_count >= 1

    with server.stream() as stream:
        stream.send("both", SAFE if server.workaround else CHUNKS)
        server.wait(look, "the producer is done")
        server.holds(lambda: look() and False, 0.2)
    sent = SAFE if server.workaround else CHUNKS
    return Observation(peak > CHUNKS / 4, f"{peak:.0f} of {sent} responses of one request waited before the consumer")
