"""A text as the sequence id of a model that is configured for numbers: what does the model get?"""

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    name = 4242 if server.workaround else "abc"
    answer = server.infer("chat", sequence_id=name, sequence_start=True)
    given = server.logged(r"^id (\d+)") or server.logged(r"\nid (\d+)")
    said = f"the model was given {given[-1]}" if given else f"refused: {answer.error}"
    return Observation(bool(given) and given[-1] != str(name), f"sequence_id {name!r}: {said}")
