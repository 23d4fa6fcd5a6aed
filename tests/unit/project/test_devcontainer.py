"""The devcontainer: what its file names is there, and its live page is opened under the name that it has outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from labctl.pages.address import PORTS

FOLDER = ROOT / ".devcontainer"
TEXT = (FOLDER / "devcontainer.json").read_text()
FILE: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", TEXT, flags=re.MULTILINE))
LABCTL = """#!/bin/bash
echo "labctl $*" >>"$ASKED"
if [ "$1" = watch ]; then
    echo "iterative: http://127.0.0.1:7861/secret/  (Ctrl-C ends it)"
    echo "forwarded: https://name/secret/"
fi
"""


# Of https://containers.dev/implementors/json_reference: what is written otherwise is ignored without a word.
KNOWN = {"name", "build", "hostRequirements", "containerEnv", "mounts", "runArgs", "remoteUser", "customizations"}
KNOWN |= {"forwardPorts", "portsAttributes", "otherPortsAttributes"}
KNOWN |= {"onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand", "postAttachCommand"}


def test_every_key_is_one_that_editors_know_and_nothing_comes_from_another_registry() -> None:
    assert FILE.keys() <= KNOWN
    dockerfile = (FOLDER / FILE["build"]["dockerfile"]).read_text()
    assert re.findall(r"^(?:ARG BASE=|FROM )(.*)$", dockerfile, re.MULTILINE) == ["debian:bookworm-slim", "${BASE}"]


def test_every_port_is_labelled_and_the_pages_are_among_them() -> None:
    ports = {str(port) for port in FILE["forwardPorts"]}
    assert {str(port) for port in PORTS.values()} <= ports
    assert {port for port, told in FILE["portsAttributes"].items() if told["label"]} == ports


@pytest.mark.parametrize("codespace", ["", "quiet-name"])
def test_the_live_page_opens_in_the_readers_browser(tmp_path: Path, codespace: str) -> None:
    shutil.copytree(FOLDER, tmp_path / ".devcontainer")
    program, asked = tmp_path / ".venv" / "bin" / "labctl", tmp_path / "asked"
    program.parent.mkdir(parents=True)
    program.write_text(LABCTL)
    program.chmod(0o755)
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/bash\necho "browser $*" >>"$ASKED"\n')
    browser.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "ASKED": str(asked), "BROWSER": str(browser)}
    if codespace:
        env |= {"CODESPACE_NAME": codespace, "GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN": "app.example"}
    subprocess.run([tmp_path / FILE["postAttachCommand"]], env=env, check=True, timeout=60)
    named = f" --forwarded-host {codespace}-7861.app.example" if codespace else ""
    assert sorted(asked.read_text().splitlines()) == [
        "browser http://127.0.0.1:7861/secret/",
        "labctl up iterative --runtime local",
        f"labctl watch iterative --port 7861{named}",
    ]
