"""``python -m labkit.script SCRIPT ARGUMENT...``: a lab's client or report, its faults shown as plain messages.

An error that is foreseeable is a sentence, and Ctrl-C ends the script without a traceback.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from labkit import disk, proxies
from labkit.errors import LabError
from labsched.printable import allow_any_text, printable


def main() -> int:
    """The exit status: 1 for a LabError, 130 where the script was interrupted."""
    proxies.spare_loopback()
    allow_any_text()
    script, *arguments = sys.argv[1:]
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))  # as where Python itself runs the script
    try:
        runpy.run_path(script, run_name="__main__")
    except LabError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    except OSError as error:
        if not disk.is_disk_fault(error):
            raise
        print(f"error: {printable(str(disk.describe_os_error(error)))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
