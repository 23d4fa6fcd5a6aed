"""Queue time-outs of 50 ms behind a long execution, and a client's own deadline of 50 ms beside them."""

import time
from statistics import median

from labkit.exhibit import CannotTell, ExhibitServer, Observation

TIMEOUT_S, PROBES = 0.05, 9


def late(server: ExhibitServer, **options: float) -> float:
    """Median time from the end of the time-out to the refusal, in seconds."""
    times = []
    for _ in range(PROBES):
        began = time.monotonic()
        if server.infer("work", **options).ok:
            raise CannotTell("a request behind the long one was served")
        times.append(time.monotonic() - began - TIMEOUT_S)
    return median(times)


def reproduce(server: ExhibitServer) -> Observation:
    server.send("work", 60.0)
    server.wait(lambda: server.counters("work").pending == 0 and server.state("work") == "READY", "the long one runs")
    own = late(server, client_timeout=TIMEOUT_S)
    queue = own if server.workaround else late(server)
    measured = f"median lateness: queue time-out {queue * 1e3:.0f} ms, a client's deadline {own * 1e3:.0f} ms"
    if own > 0.2:
        raise CannotTell(f"this machine is too busy for a verdict about times: {measured}")
    return Observation(queue - own > 0.2, measured)
