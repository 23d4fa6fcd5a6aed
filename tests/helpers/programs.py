"""Which programs a test can use. Each program is asked: docker may be on PATH without its compose plugin."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import pytest


@functools.cache
def works(command: str) -> bool:
    """Whether a program (``kubectl``) or a plugin of it (``docker compose``) runs."""
    program, *plugin = command.split()
    if not shutil.which(program):
        return False
    asked = [program, *plugin, "version"] if plugin else [program, "--help"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def needs(*commands: str) -> pytest.MarkDecorator:
    """Skip a test where one of ``commands`` does not run, unless LABS_REQUIRE_DOCKER is set: then the test fails."""
    missing = [command for command in commands if not works(command)]
    return pytest.mark.skipif(
        bool(missing) and not os.environ.get("LABS_REQUIRE_DOCKER"), reason=f"not on this machine: {', '.join(missing)}"
    )
