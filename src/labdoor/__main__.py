"""``python -m labdoor --endpoint HOST:PORT --models NAME,NAME --port N``: serve until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import ctypes
import socket
import sys

NAME = "labs-door"  # by which labctl finds it among the processes of a machine
PR_SET_NAME = 15


def main() -> int:
    parser = argparse.ArgumentParser(prog="labdoor", description="The OpenAI API in front of Triton's text models.")
    parser.add_argument("--endpoint", required=True, metavar="HOST:PORT", help="Triton's gRPC endpoint")
    parser.add_argument("--models", required=True, metavar="NAME,NAME", help="models of the stack")
    parser.add_argument("--tokenizer", default="", metavar="FOLDER", help="the tokenizer of all of them")
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1")
    parser.add_argument("--announce", default="", metavar="TEXT", help="printed when it listens")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for an answer")
    parser.add_argument(
        "--stalled",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds after which a client that takes nothing is given up",
    )
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_NAME, NAME.encode())
    import uvicorn  # after the name: these take seconds, and labctl may look for the process meanwhile

    from labdoor import app, models
    from labdoor.exchange import bound
    from labkit.errors import LabError

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started and options.announce:
                print(options.announce, flush=True)

    try:
        found = models.find(options.endpoint, options.models.split(","), options.tokenizer)
    except LabError as error:
        print(f"labctl: {error}", file=sys.stderr)
        return 1
    made = app.make(options.endpoint, found, app.Limits(options.timeout, options.stalled))
    config = uvicorn.Config(
        made,
        host="127.0.0.1",
        port=options.port,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=5,
        backlog=512,
    )
    server = Announced(config)
    server.run([bound(config.bind_socket())])
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
