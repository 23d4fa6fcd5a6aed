"""A body of 200,000 opening brackets."""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    body = b"[" * (100 if server.workaround else 200_000)
    status, text = server.call("POST", "/v2/models/work/infer", body)
    how = server.wait_dead(3)
    return Observation(bool(how), f"status {status}, {text[:60]}; the server: {how or 'lives'}")
