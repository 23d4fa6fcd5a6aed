"""The files of a run: one per phase, one line per request, and ``result.json`` with every number."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord

SCHEMA_VERSION = 2
FILE = "result.json"
PACKAGES = ("numpy", "tritonclient", "torch", "transformers", "openvino-genai", "nvidia-pytriton", "locust")


def installed_versions() -> dict[str, str]:
    """Versions of what a number may depend on, as far as they are installed here."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def describe_machine() -> dict[str, Any]:
    """The machine that measured: processor, cores, memory in bytes, kernel."""
    model = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = platform.processor()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
    }


def write_phase(out: Path, phase: str, data: Mapping[str, Any], records: Iterable[RequestRecord]) -> None:
    """``<out>/<phase>.json``, and one line per request appended to ``requests.jsonl``."""
    atomic_write(out / f"{phase}.json", json.dumps(data, indent=1))
    lines = [json.dumps({"phase": phase, **record.to_json()}) for record in records]
    path = out / "requests.jsonl"
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    atomic_write(path, old + "".join(f"{line}\n" for line in lines))


def read_phase(out: Path, phase: str) -> dict[str, Any]:
    """A phase's data. Raises LabError if the phase has not been run."""
    path = out / f"{phase}.json"
    if not path.is_file():
        raise LabError(f"phase {phase} left no result", f"{path} is missing", code="phase-result-missing")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def has_phase(out: Path, phase: str) -> bool:
    return (out / f"{phase}.json").is_file()


def context_of(out: Path, phase: str) -> dict[str, Any]:
    """The context with which a phase was run."""
    data: dict[str, Any] = json.loads((out / f"context-{phase}.json").read_text(encoding="utf-8"))
    return data


def write_result(
    out: Path,
    lab: str,
    settings: Mapping[str, Any],
    metrics: Mapping[str, Any],
    triton: str | None,
    edited: Sequence[str] = (),
    *,
    runtime: str | None = None,
    quick: bool = False,
) -> None:
    """``result.json``: what was measured, with what, and on what.

    Args:
        edited: model files that were not as shipped.
        runtime: where the servers ran, if the caller knows.
        quick: whether it was the shorter run (``labctl run --quick``).
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "lab": lab,
        "runtime": runtime,
        "quick": quick,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "settings": dict(settings),
        "versions": {**installed_versions(), "triton": triton},
        "machine": describe_machine(),
        "edited": list(edited),
        "metrics": dict(metrics),
    }
    atomic_write(out / FILE, json.dumps(document, indent=1))


def load_result(path: Path) -> dict[str, Any]:
    """A result, by its file or its folder.

    Raises:
        LabError: there is none, it is of another schema, or a part of it is missing or of a wrong type.
    """
    file = path / FILE if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(
            f"{file} cannot be read as a result", str(error), "name a folder below results/", code="result-unreadable"
        ) from error
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise LabError(f"{file} is not a result of schema version {SCHEMA_VERSION}", code="result-other-version")
    document.setdefault("settings", {})
    for key, kind, name in (("lab", str, "a text"), ("metrics", dict, "an object"), ("settings", dict, "an object")):
        if not isinstance(document.get(key), kind):
            raise LabError(
                f"{file} is not a result",
                f"its '{key}' should be {name}",
                "labctl run makes one",
                code="result-invalid",
            )
    return document


def flatten(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested metrics by dotted path: {"iterative": {"overlap": 0.9}} → {"iterative.overlap": 0.9}."""
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
