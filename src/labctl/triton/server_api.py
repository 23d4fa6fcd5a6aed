"""Calls of Triton's HTTP API: liveness, the models' states, loading and unloading models."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.triton.arguments import http_header
from labkit.errors import LabError
from labkit.fetch import fetch

POLL_S = 0.05
LINE = re.compile(r"^(?P<head>[IWEF]\d{4} \d\d:\d\d:\S+ \d+ [^\]]*\]) \"(?P<message>.*)\"$")
ESCAPED = re.compile(r"\\(?P<what>[nt\"\\/])")
PLAIN = {"n": "\n", "t": "\t"}


@dataclass(frozen=True)
class ModelState:
    """One row of Triton's repository index. ``state`` is READY, LOADING, UNLOADING, UNAVAILABLE, or "" (not begun)."""

    name: str
    version: str
    state: str
    reason: str


class Unreachable(Exception):
    """No answer from the endpoint (yet)."""


def call_triton(
    endpoint: str, method: str, path: str, body: Any = None, timeout: float = 2.0, secret: str | None = None
) -> tuple[int, bytes]:
    """One HTTP request to Triton; ``secret`` opens its closed APIs. Raises Unreachable without a complete answer."""
    payload = None if body is None else json.dumps(body)
    headers = {"Content-Type": "application/json"} if payload else {}
    try:
        return fetch(endpoint, method, path, payload, headers | http_header(secret), timeout=timeout)
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(str(error) or type(error).__name__) from error


def _object(body: bytes, kind: type[Any]) -> Any:
    """The JSON of an answer, a ``kind``. Raises Unreachable: it is something else, so the server is not Triton."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreachable("its answer is not JSON") from error
    if not isinstance(found, kind):
        raise Unreachable("its answer is JSON, but not Triton's")
    return found


def is_live(endpoint: str) -> bool:
    with contextlib.suppress(Unreachable):
        return call_triton(endpoint, "GET", "/v2/health/live")[0] == 200
    return False


def server_version(endpoint: str) -> str | None:
    """Return Triton's own version ("2.51.0"); None if it cannot be asked."""
    with contextlib.suppress(Unreachable):
        version = _object(call_triton(endpoint, "GET", "/v2")[1], dict).get("version")
        return None if version is None else str(version)
    return None


def model_states(endpoint: str, secret: str | None = None) -> list[ModelState]:
    """The repository index. Raises Unreachable."""
    status, body = call_triton(endpoint, "POST", "/v2/repository/index", {}, secret=secret)
    if status != 200:
        raise Unreachable(body.decode(errors="replace"))
    rows = _object(body, list)
    if not all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows):
        raise Unreachable("its answer has rows that are not models")
    return [ModelState(*(str(row.get(key) or "") for key in ("name", "version", "state", "reason"))) for row in rows]


def load_model(
    endpoint: str, model: str, timeout: float, secret: str | None = None, config: Mapping[str, Any] | None = None
) -> None:
    """Have Triton load a model again; its former version serves until then, and on failure. Raises LabError.

    Args:
        config: in the place of the repository's config.pbtxt, until the next load.
    """
    asked = {"parameters": {"config": json.dumps(config)}} if config else {}
    try:
        status, body = call_triton(endpoint, "POST", f"/v2/repository/models/{model}/load", asked, timeout, secret)
    except Unreachable as error:
        raise LabError(
            f"{model} was not loaded within {timeout:g} s",
            "its initialize may never end, or the machine is busy",
            code="model-load-slow",
        ) from error
    if status != 200:
        text = triton_message(body)  # such as "load failed for model 'm': version 1 is at UNAVAILABLE state: REASON;"
        reason = text.rpartition("UNAVAILABLE state: ")[2].strip().rstrip(";").strip() or text
        raise LabError(f"{model} cannot be loaded", locate_error(reason, model), code="model-load-failed")


def unload_model(endpoint: str, model: str, timeout: float, secret: str | None) -> None:
    """Have Triton unload a model: without that, a load with other parameters but the same files changes nothing.

    Raises LabError in Triton's own words, or that it took longer than ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    try:
        status, body = call_triton(endpoint, "POST", f"/v2/repository/models/{model}/unload", {}, timeout, secret)
        if status != 200:
            raise LabError(f"{model} cannot be unloaded", triton_message(body), code="model-unload-failed")
        while any(row.name == model and row.state in ("READY", "UNLOADING") for row in model_states(endpoint, secret)):
            if time.monotonic() > deadline:
                raise Unreachable("it is still there")
            time.sleep(POLL_S)
    except Unreachable as error:
        raise LabError(
            f"{model} was not unloaded within {timeout:g} s", str(error), code="model-unload-slow"
        ) from error


def model_config(endpoint: str, model: str) -> dict[str, Any]:
    """A model's configuration as the server has it. Raises LabError if the server returns none."""
    try:
        status, body = call_triton(endpoint, "GET", f"/v2/models/{model}/config")
        if status != 200:
            raise LabError(f"{model} has no configuration", triton_message(body), code="model-unconfigured")
        config: dict[str, Any] = _object(body, dict)
    except Unreachable as error:
        raise LabError("the server does not answer", str(error), code="server-silent") from error
    return config


def models_on_the_way(endpoint: str, model: str) -> list[str]:
    """The models that a request to ``model`` goes through, in their order: an ensemble's steps, or itself."""
    steps = model_config(endpoint, model).get("ensemble_scheduling", {}).get("step", [])
    return [name for step in steps for name in models_on_the_way(endpoint, step["model_name"])] or [model]


def locate_error(reason: str, model: str, version: str = "1") -> str:
    """Triton's reason with the model's name: a syntax error itself names "(model.py, line 28)" alone."""
    return reason.replace("(model.py, line", f"({model}/{version or '1'}/model.py, line")


def triton_message(body: bytes | str) -> str:
    """Triton's own words out of an error body."""
    text = body if isinstance(body, str) else body.decode(errors="replace")
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        return str(json.loads(text.removeprefix("data:").strip())["error"])
    return text


def message(line: str) -> str:
    """The message of a log line with its line breaks; a line that is not Triton's stays as it is.

    Other escapes stay escaped, so that a client's text cannot move the cursor.
    """
    match = LINE.match(line)
    return _plain(match["message"]) if match else line


def readable_log(lines: Iterable[str]) -> Iterator[str]:
    """The log for people: a traceback takes as many lines as it has."""
    for line in lines:
        match = LINE.match(line)
        yield f"{match['head']} {_plain(match['message'])}" if match and "\\n" in line else line


def _plain(text: str) -> str:
    return ESCAPED.sub(lambda match: PLAIN.get(match["what"], match["what"]), text)
