"""Ten requests of 0.3 s with a deadline of 0.5 s: how many does the server execute, and how many for a client?"""

from labkit.exhibit import CannotTell, ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    answers = [server.send("work", 0.3, client_timeout=0.5) for _ in range(10)]
    server.wait(lambda: all(answer.done.is_set() for answer in answers), "an answer or a deadline for each")
    given_up = sum(not answer.ok for answer in answers)
    if given_up < 5:
        raise CannotTell(f"only {given_up} of 10 requests met their deadline")
    server.wait(lambda: server.counters("work").pending == 0, "an empty queue")
    server.holds(lambda: server.counters("work").exec_count < 10, 1)
    counters = server.counters("work")
    measured = (
        f"{given_up} of 10 clients gave up; executed {counters.exec_count:.0f}, failed {counters.failed:.0f}, "
        f"cancelled {counters.canceled:.0f}"
    )
    return Observation(counters.exec_count == 10, measured)
