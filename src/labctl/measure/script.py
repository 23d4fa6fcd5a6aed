"""``python -m labctl.measure.script SCRIPT ARGUMENT...``: a lab's client or report, its faults shown as plain messages.

An error that is foreseeable is a sentence, and Ctrl-C ends the script without a traceback.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from labctl.errors import LabError


def main() -> int:
    """The exit status: 1 for a LabError, 130 where the script was interrupted."""
    script, *arguments = sys.argv[1:]
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))  # as where Python itself runs the script
    try:
        runpy.run_path(script, run_name="__main__")
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
