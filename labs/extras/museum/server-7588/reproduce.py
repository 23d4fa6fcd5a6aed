"""One of two models is unloaded under --strict-readiness: is the server ready?"""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    server.call("POST", "/v2/repository/models/a/unload", {})
    server.wait(lambda: server.state("a") not in ("READY", "UNLOADING"), "model a is unloaded")
    path = "/v2/models/a/ready" if server.workaround else "/v2/health/ready"
    ready = server.holds(lambda: server.call("GET", path)[0] == 200, 1)
    return Observation(ready, f"model a is {server.state('a')}; GET {path}: {'200' if ready else 'not ready'}")
