"""``python -m labctl.weights pull SPEC``: the step that makes weights, run in the serving environment.

Progress as lines on stderr; on success one JSON object with the folder on stdout.
"""

from __future__ import annotations

import json
import sys

from labctl.errors import LabError
from labctl.weights import parse, pull
from labctl.workspace import Workspace


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] != "pull":
        print("usage: python -m labctl.weights pull SPEC", file=sys.stderr)
        return 2
    try:
        weights = pull(parse(arguments[1]), Workspace.find(), lambda text: print(text, file=sys.stderr, flush=True))
    except LabError as error:
        sys.stderr.write(f"{LabError.MARK}{error.to_json()}\n")
        return 1
    print(json.dumps({"spec": weights.spec, "path": str(weights.path)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
