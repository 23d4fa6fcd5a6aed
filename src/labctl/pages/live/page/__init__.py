"""The page as one file: HTML with its style and scripts inside, and a recording where it has one."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib.resources import files
from typing import Any

SCRIPTS = (
    "store.js",
    "strip.js",
    "words.js",
    "lane.js",
    "quiz.js",
    "panels.js",
    "controls.js",
    "routes.js",
    "times.js",
    "watch.js",
)


def document(recording: Any = None) -> str:
    """The page. It calls only the server that it came from, and with a ``recording`` no server at all."""
    html, script, policy = _parts()
    content = ""
    if recording is not None:
        content = _json_in_html(recording)
        policy = policy.replace("connect-src 'self'", "connect-src 'none'")
    html = html.replace("<!--policy-->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    before, after = html.split("/*script*/")
    opened, closed = before.split('id="recording">')
    return f'{opened}id="recording">{content}{closed}{script}{after}'


@functools.cache
def _parts() -> tuple[str, str, str]:
    folder = files(__package__)
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    html = (folder / "watch.html").read_text(encoding="utf-8")
    html = html.replace("/*style*/", (folder / "watch.css").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; form-action 'none'; "
        f"base-uri 'none'; script-src 'sha256-{digest}'"
    )
    return html, script, policy


def _json_in_html(recording: Any) -> str:
    """JSON without ``<``, so that no text in it can end the script element that it is in."""
    return json.dumps(recording, separators=(",", ":")).replace("<", "\\u003c")
