"""Clients leave during the last step of their iterative sequences: do the slots come back?"""

from labkit.exhibit import ExhibitServer, Observation

SLOTS = 4


def reproduce(server: ExhibitServer) -> Observation:
    with server.stream() as healthy:
        healthy.send("steps", sequence_id=1, sequence_start=True)
        server.wait(healthy.ended, "a sequence without a cancellation")
    for number in range(SLOTS):
        with server.stream() as leaving:
            leaving.send("steps", 60, sequence_id=100 + number, sequence_start=True)
            server.wait(lambda: len(server.logged("step begins")) > number + 1, "the step begins")
        server.wait(lambda: len(server.logged("step ends cancelled")) > number, "the model sees the cancellation")
    with server.stream() as newcomer:
        newcomer.send("steps", sequence_id=2, sequence_start=True)
        silent = server.holds(lambda: not newcomer.ended(), 8)
        pending = server.counters("steps").pending
    said = f"no answer in 8 s, {pending:.0f} pending" if silent else "answered"
    return Observation(silent, f"{SLOTS} sequences cancelled in their last step, one for each slot; a new one: {said}")
