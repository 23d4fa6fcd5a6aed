"""A second sequence behind the only slot, while the first one goes on: does it ever hear anything?"""

from labkit.exhibit import ExhibitServer, Observation

TURNS = 25


def reproduce(server: ExhibitServer) -> Observation:
    server.infer("chat", sequence_id=1, sequence_start=True)
    second = server.send("chat", sequence_id=2, sequence_start=True)
    turns = 0
    while turns < TURNS and server.holds(lambda: not second.done.is_set(), 0.2):
        turns += 1
        end = server.workaround and turns == 3
        if not (server.workaround and turns > 3):
            server.infer("chat", sequence_id=1, sequence_end=end)
    said = f"had an {'answer' if second.ok else 'error'}" if second.done.is_set() else "had neither answer nor error"
    return Observation(not second.done.is_set(), f"after {turns} turns of the first (idle limit 1 s) the second {said}")
