"""A JSON input of a shape that no memory holds."""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    shape = [1, 1] if server.workaround else [1099511627776]
    inputs = [{"name": "X", "datatype": "FP32", "shape": shape, "data": [0]}]
    status, text = server.call("POST", "/v2/models/work/infer", {"inputs": inputs})
    how = server.wait_dead(3)
    return Observation(bool(how), f"status {status}, {text[:60]}; the server: {how or 'lives'}")
