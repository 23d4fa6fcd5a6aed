"""Twelve requests of one sequence to a model with two instances and no sequence batcher."""

from labkit.exhibit import Found, Server


def reproduce(server: Server) -> Found:
    counts = [int(server.infer("count", sequence_id=9, sequence_start=n == 0).value) for n in range(12)]
    return Found(counts != list(range(1, 13)), f"counted {', '.join(map(str, counts))}")
