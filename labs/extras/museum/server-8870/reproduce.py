"""Bursts make the batcher's count of idle instances drift; then requests wait although instances are idle."""

from labkit.exhibit import CannotTell, ExhibitServer, Observation

INSTANCES, ROUNDS, BURSTS, BURST = 8, 2, 100, 32


def waiting(server: ExhibitServer) -> float:
    """Requests that still wait when there is one long request for each instance."""
    answers = []
    for _ in range(INSTANCES):
        answers.append(server.send("work", 3.0))
        server.holds(lambda: server.counters("work").pending, 0.2)
    stays = server.holds(lambda: server.counters("work").pending, 1.0)
    pending = server.counters("work").pending if stays else 0.0
    server.wait(lambda: all(answer.done.is_set() for answer in answers), "the long requests end")
    return pending


def reproduce(server: ExhibitServer) -> Observation:
    if before := waiting(server):
        raise CannotTell(f"{before:.0f} requests wait for idle instances even before the bursts")
    bursts, after = 0, 0.0
    while bursts < ROUNDS * BURSTS and not after:
        for _ in range(BURSTS):
            server.burst("work", [0.005] * BURST)
        bursts += BURSTS
        after = waiting(server)
    measured = f"0 before, {after:.0f} after {bursts} bursts"
    return Observation(after > 0, f"of {INSTANCES} requests for {INSTANCES} instances wait: {measured}")
