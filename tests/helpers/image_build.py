"""An image of docker/, built for a test."""

from __future__ import annotations

import os
import subprocess

from checkout import ROOT

from labctl.runtimes import images


def built(tag: str, *arguments: str) -> str:
    """Build an image as Compose does; the tag."""
    environment = images.build_environment()
    secret = ["--secret", f"id=ca,src={environment.get('LABS_CA_BUNDLE', '/dev/null')}"]
    wheels = ["--build-context", f"wheels={environment.get('LABS_WHEELS', ROOT / 'docker/wheels')}"]
    argv = ["docker", "build", "--tag", tag, *secret, *wheels, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "DOCKER_BUILDKIT": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return tag
