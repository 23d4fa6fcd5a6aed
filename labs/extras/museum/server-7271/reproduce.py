"""Twenty requests gathered by a BLS model: in how many executions does the model behind it serve them?"""

from labkit.exhibit import CannotTell, ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    server.burst("outer", [0.02] * 20)
    server.wait(lambda: server.counters("outer").inferences == 20, "20 counted requests")
    outer, inner = server.counters("outer"), server.counters("inner")
    if outer.mean_batch < 2:
        raise CannotTell(f"the outer model gathered nothing: {outer.exec_count:.0f} executions of 20 requests")
    measured = f"20 requests in {outer.exec_count:.0f} executions outside, in {inner.exec_count:.0f} inside"
    return Observation(inner.exec_count == inner.inferences, measured)
