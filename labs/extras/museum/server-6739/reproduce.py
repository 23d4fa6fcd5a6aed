"""A client cancels a request that runs: does the model learn of it, alone and as a step of an ensemble?"""

from labkit.exhibit import CannotTell, ExhibitServer, Observation


def sees_cancellation(server: ExhibitServer, model: str, seconds: float) -> bool:
    """Whether `inner` saw that a request of `model` was cancelled in the middle of its execution."""
    runs, ends = len(server.logged("execution begins")), len(server.logged("cancellation"))
    answer = server.send(model, seconds)
    server.wait(lambda: len(server.logged("execution begins")) > runs, "the execution begins")
    answer.cancel()
    server.wait(lambda: len(server.logged("cancellation")) > ends, "the execution ends")
    return server.logged("cancellation (seen|not seen)")[-1] == "seen"


def reproduce(server: ExhibitServer) -> Observation:
    if not sees_cancellation(server, "inner", 30):
        raise CannotTell("the model alone saw no cancellation in 30 s")
    inside = sees_cancellation(server, "inner" if server.workaround else "outer", 4)
    name = "again alone" if server.workaround else "in the ensemble"
    return Observation(
        not inside, f"the model saw the cancellation: alone yes, {name} {'yes' if inside else 'no, for 4 s'}"
    )
