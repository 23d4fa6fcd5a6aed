"""Triton drops a sequence whose client goes silent. Does the model see its end?"""

from labkit.exhibit import CannotTell, ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    server.infer("chat", sequence_id=5, sequence_start=True)
    server.holds(lambda: True, 3)  # six times the idle limit
    late = server.infer("chat", sequence_id=5)
    if "START" not in late.error:
        raise CannotTell(f"the sequence was not dropped: {late.error or 'the late request was served'}")
    ended = bool(server.logged(r"(?:controls|freed):.*END"))
    return Observation(not ended, f"dropped ({late.error[-60:]}); the model saw its end: {'yes' if ended else 'no'}")
