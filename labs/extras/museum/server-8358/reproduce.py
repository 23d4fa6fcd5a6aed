"""Two BLS requests that need the same resource: one holds it, the other stands before the model that it calls."""

from labkit.exhibit import CannotTell, ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    if error := server.infer("outer", 0.01).error:
        raise CannotTell(f"not even one request is answered: {error}")
    for pair in range(1, 11):
        answers = [server.send("outer", 0.3) for _ in range(2)]
        if server.holds(lambda: not any(answer.done.is_set() for answer in answers), 5):
            other = server.send("inner")
            blocked = server.holds(lambda: not other.done.is_set(), 2)
            said = "not answered either" if blocked else "answered"
            measured = f"pair {pair}: neither of two requests answered in 5 s; inner, which needs nothing, {said}"
            return Observation(True, measured)
        server.wait(lambda: all(answer.done.is_set() for answer in answers), "both answers")
    return Observation(False, "10 pairs of requests, all answered")
