"""The OpenAI API where other machines reach it: ``python -m labctl.runtimes.envoy.door``, and the words of ``labdoor``.

Envoy listens at ``--host`` and ``--port``, asks for the token, speaks TLS and bounds what strangers may hold open. The
API itself (``python -m labdoor``) takes this process' place, on a socket without a file that Envoy alone knows by
name. It ends when Envoy does, and Envoy ends with it. The token lies in their memory and in its own file alone.

A user of this machine who looks the socket up reaches the API without the token, as they reach Triton itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

from labctl.runtimes import keeper
from labctl.runtimes.envoy import config, container
from labctl.runtimes.envoy.config import Address
from labctl.runtimes.leftovers import DOOR, RECORD, ROOT, STACK
from labkit.waiting import attempts

PATIENCE_S, LOOK_S = 60.0, 0.02
HOLDS_NO_MARK = (RECORD, ROOT, STACK)  # Envoy goes with the API, and is not the one before the stack's servers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m labctl.runtimes.envoy.door", allow_abbrev=False)
    parser.add_argument("--host", required=True, metavar="ADDRESS", help="where Envoy listens")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE", help="the token that clients must send"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="the certificate: Envoy speaks TLS alone then")
    parser.add_argument("--tls-key", metavar="FILE", help="the private key of --tls-cert")
    options, more = parser.parse_known_args()
    keeper.take_name(DOOR)  # labctl may look for it while Envoy starts
    tls = (options.tls_cert, options.tls_key) if options.tls_cert else None
    name = f"labs-door-{secrets.token_hex(16)}"
    behind = socket.socket(socket.AF_UNIX)
    behind.bind(f"\0{name}")  # the API listens there when it is ready: until then Envoy says that it is not
    behind.set_inheritable(True)
    try:
        front = start_envoy(Address(options.host, options.port), f"@{name}", tls, options.token_file)
    except ValueError as error:
        sys.exit(f"labctl: {error}")
    program = ["-m", "labdoor", "--socket", str(behind.fileno()), "--front", str(front.pid)]
    os.execv(sys.executable, [sys.executable, *program, *more])


def start_envoy(listen: Address, door: str, tls: tuple[str, str] | None, token_file: Path) -> subprocess.Popen[bytes]:
    """Envoy before the API on the socket ``door``, once it listens; it ends with this process.

    Raises ValueError: there is no token, or Envoy does not listen.
    """
    text = container.with_token(json.dumps(config.before_door(listen, door, tls)), token_file)
    held = os.memfd_create("envoy.json", 0)
    os.write(held, text.encode())
    envoy = subprocess.Popen(
        [str(config.binary()), *config.envoy_arguments(f"/dev/fd/{held}")],
        stdin=subprocess.DEVNULL,
        env={variable: value for variable, value in os.environ.items() if variable not in HOLDS_NO_MARK},
        pass_fds=(held,),
        start_new_session=True,  # Ctrl-C is the API's to hear
        preexec_fn=functools.partial(keeper.die_with_parent, signal.SIGKILL),
    )
    os.close(held)
    for _ in attempts(PATIENCE_S, LOOK_S):
        if _listens(listen):
            return envoy
        if envoy.poll() is not None:
            break
    envoy.kill()
    raise ValueError(f"Envoy does not listen on {listen.host}:{listen.port} (its own message is above)")


def _listens(at: Address) -> bool:
    try:
        socket.create_connection((at.host, at.port), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
