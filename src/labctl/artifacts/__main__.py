"""``python -m labctl.artifacts``: makes one artifact, in the serving environment.

``pull SPEC`` makes weights, ``build ENGINE --weights SPEC [--option KEY=VALUE]...`` makes an engine. Progress appears
as lines on stderr. On success, stdout is one JSON object with the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from labctl.artifacts import engines, weights
from labctl.artifacts.store import Artifact
from labctl.workspace import Workspace
from labkit.errors import LabError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m labctl.artifacts")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("pull").add_argument("spec")
    build = actions.add_parser("build")
    build.add_argument("engine", choices=list(engines.ENGINES))
    build.add_argument("--weights", dest="spec", required=True, metavar="SPEC")
    build.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.action == "pull":
            artifact: Artifact = weights.parse_source(parsed.spec)
        else:
            engines.skip_unused_imports()
            pairs = [text.partition("=") for text in parsed.option]
            artifact = engines.request(parsed.engine, parsed.spec, {key: value for key, _, value in pairs})
        path = artifact.make(Workspace.find(), lambda text: print(text, file=sys.stderr, flush=True))
    except LabError as error:
        sys.stderr.write(f"{LabError.MARK}{error.to_json()}\n")
        return 1
    print(json.dumps({"title": artifact.title, "path": str(path)}))
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # an ordinary exit takes a second more, to take PyTorch and the exporters apart
