"""A request that asks for the classification of a text."""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0]}]
    output = {"name": "Y", "parameters": {} if server.workaround else {"classification": 1}}
    status, text = server.call("POST", "/v2/models/text/infer", {"inputs": inputs, "outputs": [output]})
    how = server.wait_dead(3)
    return Observation(bool(how), f"status {status}, {text[:60]}; the server: {how or 'lives'}")
