"""An ensemble whose second step refuses requests: its queue holds 4, and 16 come at once."""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    with server.stream() as stream:
        stream.send("both", 16)
        server.wait(lambda: server.counters("producer").exec_count or stream.ended(), "the first step is done")
        stuck = server.holds(lambda: not stream.ended(), 8)
        pending = server.counters("consumer").pending
        refused = server.counters("consumer").rejected
        end = "no end in 8 s" if stuck else f"ended: {str(stream.messages[-1])[:60]}"
        measured = f"{len(stream.messages)} messages, {end}; consumer: {pending:.0f} pending, {refused:.0f} refused"
        return Observation(stuck and not pending, measured)
