"""``python -m labctl.engines build ENGINE --weights SPEC [--option KEY=VALUE]...``, run in the serving environment.

Progress as lines on stderr; on success one JSON object with the folder on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys

from labctl.engines import ENGINES, request
from labctl.errors import LabError
from labctl.workspace import Workspace

# transformers imports it where it is there, and with it scipy and pandas: 2 s of every build, for nothing.
sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m labctl.engines")
    parser.add_argument("action", choices=["build"])
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("--weights", required=True, metavar="SPEC")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args(arguments)
    try:
        pairs = [text.partition("=") for text in asked.option]
        build = request(asked.engine, asked.weights, {key: value for key, _, value in pairs})
        path = build.make(Workspace.find(), lambda text: print(text, file=sys.stderr, flush=True))
    except LabError as error:
        sys.stderr.write(f"{LabError.MARK}{error.to_json()}\n")
        return 1
    print(json.dumps({"engine": asked.engine, "source": build.source.spec, "path": str(path)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
