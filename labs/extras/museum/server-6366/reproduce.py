"""POST /generate to a decoupled model that answers with two responses: which status does the client get?"""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    path = "generate_stream" if server.workaround else "generate"
    status, text = server.call("POST", f"/v2/models/tokens/{path}", {"X": 2.0})
    return Observation(status == 200 and "error" in text, f"{path}: status {status}, {' '.join(text.split())[:110]}")
