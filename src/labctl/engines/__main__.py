"""``python -m labctl.engines build ENGINE --weights SPEC [--option KEY=VALUE]...``, run in the serving environment.

Progress as lines on stderr; on success one JSON object with the folder on stdout.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys

from labctl.engines import ENGINES, request
from labctl.errors import LabError
from labctl.workspace import Workspace

COLLECT_AFTER = 50_000  # new objects; importing the exporters makes many times as many, and none of them is garbage


def spare() -> None:
    """What costs half of a build's time and makes nothing of the engine; for a process that only builds."""
    # Imported where they are there: scikit-learn, with scipy and pandas, by transformers; and OpenVINO's telemetry,
    # which forks a process to tell Google Analytics of each step: 46 of them, 3 s.
    for name in ("sklearn", "openvino_telemetry"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    gc.set_threshold(COLLECT_AFTER)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m labctl.engines")
    parser.add_argument("action", choices=["build"])
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("--weights", required=True, metavar="SPEC")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args(arguments)
    spare()
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
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking PyTorch and the exporters apart piece by piece takes a second, and frees nothing more
