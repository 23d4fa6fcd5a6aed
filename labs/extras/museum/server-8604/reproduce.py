"""The model's process is dead, and each request fails: what do the readiness probes say?"""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    server.infer("work", -1)
    error = server.wait(lambda: server.infer("work").error, "requests fail")
    if server.workaround:  # a probe that asks for an answer
        ready = server.infer("work").ok
        return Observation(
            ready, f"requests fail ({error[-40:]}); a probe by inference says {'' if ready else 'not '}ready"
        )
    healthy = server.holds(lambda: server.call("GET", "/v2/health/ready")[0] == 200, 3)
    model = server.call("GET", "/v2/models/work/ready")[0]
    measured = f"requests fail ({error[-40:]}); server {'' if healthy else 'not '}ready, model ready: status {model}"
    return Observation(healthy and model == 200, measured)
