"""Twelve requests of one sequence to a model with two instances and no sequence batcher."""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    counts = [int(server.infer("count", sequence_id=9, sequence_start=n == 0).value) for n in range(12)]
    return Observation(counts != list(range(1, 13)), f"counted {', '.join(map(str, counts))}")
