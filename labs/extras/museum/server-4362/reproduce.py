"""A model with a response cache, asked on a gRPC stream: a miss, then the same request again."""

from labkit.exhibit import CannotTell, ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    if error := server.infer("work", 0.01).error:
        raise CannotTell(f"not even a unary call is answered: {error}")
    with server.stream() as stream:
        for count in (1, 2):
            stream.send("work", 0.02)
            server.wait(lambda: stream.ended(count), f"request {count} has ended")
        messages = [str(message)[:70] for message in stream.messages]
    return Observation("mismatch" in messages[0], f"the stream's messages: {'; '.join(messages)}")
