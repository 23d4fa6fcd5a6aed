"""The socket on which the OpenAI API listens: what its connections inherit of it."""

from __future__ import annotations

import socket

from labdoor.exchange import RECEIVE_BUFFER, SEND_BUFFER, limit_send_buffer


def test_a_connection_sends_at_once_and_keeps_little_of_what_it_sends_and_reads() -> None:
    with (
        limit_send_buffer(socket.create_server(("127.0.0.1", 0))) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER  # Linux doubles it
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 2 * RECEIVE_BUFFER
