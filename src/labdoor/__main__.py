"""``python -m labdoor --endpoint HOST:PORT --models NAME,NAME --port N``: serve until SIGTERM or Ctrl-C.

It does not authenticate clients: it serves this machine alone.
"""

from __future__ import annotations

import argparse
import gc
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

MOST_HEAD = 16 * 2**10  # bytes of a request's head
KEEP_ALIVE_S = 10  # longer than clients keep a connection that they do not use (httpx: 5)
BACKLOG = 512


def main() -> int:
    parser = argparse.ArgumentParser(prog="labdoor", description="The OpenAI API in front of Triton's text models.")
    parser.add_argument("--endpoint", required=True, metavar="HOST:PORT", help="Triton's gRPC endpoint")
    parser.add_argument("--models", required=True, metavar="NAME,NAME", help="models of the stack")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="the tokenizer of all of them")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on")
    parser.add_argument("--port", type=int, default=0, help="to listen on")
    parser.add_argument("--announce", default="", metavar="TEXT", help="printed when it listens")
    options = parser.parse_args()
    import uvicorn  # it takes seconds, and --help needs none of it

    from labdoor import app, models
    from labkit.errors import LabError

    try:
        served = models.find_models(options.endpoint, options.models.split(","), options.tokenizer)
    except LabError as error:
        print(f"labctl: {error}", file=sys.stderr)
        return 1

    def started() -> None:
        gc.collect()
        gc.freeze()  # imported objects live as long as the process: later collections skip them
        if options.announce:
            print(options.announce, flush=True)

    config = uvicorn_config(app.make_app(options.endpoint, served, started), options.host, options.port)
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    # Nothing waits for the client to acknowledge what was sent before: asyncio sets this for its own sockets alone, and
    # a first token was 50 ms late on a connection that had been used before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.listen(BACKLOG)  # before the application says that it is ready
    server.run([listening])
    return 0 if server.started else 1


def uvicorn_config(app: ASGIApp, host: str, port: int) -> uvicorn.Config:
    """How uvicorn serves the API."""
    import uvicorn

    return uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=MOST_HEAD,
        loop="uvloop",
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    sys.exit(main())
