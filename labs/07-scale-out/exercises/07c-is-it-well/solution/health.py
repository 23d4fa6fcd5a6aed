"""Is a replica well? A balancer asks this every few seconds, and sends no requests to a replica that is not."""

import http.client
import json

REQUEST = {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}]}


def healthy(http, metrics):
    """Whether the replica should get requests. `http`, `metrics`: the endpoints of the server, host:port."""
    return any(ask(http, 8) == 200 for _ in range(3))


def ask(http, seconds):
    """The status of a tiny request to the model; None if no answer comes within this many seconds."""
    return status(http, "POST", "/v2/models/waits/infer", seconds, json.dumps(REQUEST))


def status(server, method, path, seconds, body=None):
    """The status of an answer; None if no answer comes within this many seconds."""
    connection = http.client.HTTPConnection(server, timeout=seconds)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()
