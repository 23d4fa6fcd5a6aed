"""`python -m labsched explain DIR`: why a server was slow, where nothing but this package is installed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from labsched.errors import LabError
from labsched.explain import explain_result
from labsched.markdown import markdown
from labsched.printable import allow_any_text, printable


def main(argv: Sequence[str] | None = None) -> int:
    """Explain a recording in Markdown, for a terminal and for an issue. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m labsched", description=__doc__)
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "explain", help="what the slowest requests of a recording waited for, as Markdown"
    )
    command.add_argument("result", type=Path, metavar="DIR", help="the folder of LABS_RECORD, or a file in it")
    command.add_argument("--phase", default="", metavar="NAME", help="one of its recordings; the newest if not given")
    command.add_argument("--from", dest="start", metavar="TIME", help="leave out requests that came before TIME")
    command.add_argument("--to", dest="end", metavar="TIME", help="leave out requests that came at TIME or later")
    command.add_argument("--client", type=Path, metavar="FILE", help="join what the client saw of each request")
    command.add_argument("--json", action="store_true", help="print the same as one JSON document")
    asked = parser.parse_args(argv)
    allow_any_text()
    try:
        answer = explain_result(asked.result, asked.phase, asked.start, asked.end, asked.client)
    except LabError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps(answer.to_json(), indent=2))
    else:
        print("\n\n".join(map(printable, answer.paragraphs(markdown))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
