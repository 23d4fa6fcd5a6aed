"""Eight requests that a decoupled model has taken and not answered: what does Triton's gauge of pending ones say?"""

from labkit.evidence.metrics import scrape
from labkit.exhibit import CannotTell, ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    own = ("own_loop", "labs_unanswered")
    with server.stream() as stream:
        for _ in range(8):
            stream.send("own_loop", 20)
        batcher = [server.send("batcher", 20) for _ in range(8)]
        server.wait(lambda: scrape(server.metrics).own.get(own) == 8, "the model has all 8")
        server.wait(lambda: server.counters("batcher").pending == 7, "7 requests wait for a model that blocks")
        pending = server.counters("own_loop").pending
        if stream.read() or any(answer.done.is_set() for answer in batcher):
            raise CannotTell("some were answered before the gauge was read")
        gauge = scrape(server.metrics).own[own] if server.workaround else pending
    measured = f"8 unanswered: pending {pending:.0f} (a model that blocks: 7), the model's own gauge 8"
    return Observation(gauge < 8, measured)
