"""Engines: a model compiled for the place where it runs. A new kind of engine gets a place in ``ENGINES``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labbuild.exports import Onnx, OpenVino, TorchScript
from labbuild.protocol import Builder, EngineCompiler, Facts, Tell
from labbuild.tensorrt_llm import TensorRtLlm
from labctl.architecture import X86, server_architecture
from labctl.artifacts import weights
from labctl.artifacts.store import ENGINES as STORE
from labctl.artifacts.store import Artifact, key_of
from labctl.workspace import Workspace
from labkit.errors import LabError

ENGINES: dict[str, EngineCompiler] = {
    engine.name: engine for engine in (OpenVino(), Onnx(), TorchScript(), TensorRtLlm())
}


@dataclass(frozen=True)
class Build(Artifact):
    """One engine of one model, with its options. Its key is made of all that it follows from, without a GPU."""

    store = STORE
    engine: EngineCompiler
    source: weights.Source
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        inputs: list[object] = [self.engine.name, self.engine.recipe, self.source.key, dict(self.options)]
        if (machine := server_architecture()) != X86:  # x86's keys are older than this distinction
            inputs.append(machine)
        return key_of(f"{self.engine.name}-{self.source.key[:60]}", json.dumps(inputs, sort_keys=True))

    @property
    def of_image(self) -> bool:
        """Whether it is made by the builder of the image that serves it."""
        return isinstance(self.engine, TensorRtLlm)

    @property
    def title(self) -> str:
        return f"{self.engine.name} engine of {self.source.spec}"

    @property
    def argv(self) -> tuple[str, ...]:
        options = [text for key, value in self.options.items() for text in ("--option", f"{key}={value}")]
        return ("-m", "labctl.artifacts", "build", self.engine.name, "--weights", self.source.spec, *options)

    def ready(self, workspace: Workspace) -> bool:
        """Whether it can be served: not if its weights have changed since. Raises LabError if it is damaged."""
        path = self.locate(workspace)
        if not path.is_dir():
            return False
        manifest, remedy = self.manifest(workspace), self.store.remedy(self.key)
        if manifest.get("key") != self.key:
            raise LabError(
                f"{path} is not this engine",
                f"its manifest is that of {manifest.get('key', 'no engine')}",
                remedy,
                code="engine-other",
            )
        if missing := self._missing(map(Path, manifest["files"])):
            raise LabError(
                f"{path} is not a complete {self.engine.name} engine",
                f"it has no {missing}",
                remedy,
                code="engine-incomplete",
            )
        self.store.check(path, self.key)
        if not self.source.ready(workspace):
            return True  # the weights were pruned: what was compiled from them is still good
        return bool(manifest["weights"] == self.source.identity(workspace))

    def make(self, workspace: Workspace, tell: Tell, builder: Builder | None = None) -> Path:
        self.source.make(workspace, tell)
        return super().make(workspace, tell, builder)

    def write(self, fresh: Path, workspace: Workspace, tell: Tell, builder: Builder | None) -> Facts:
        try:
            facts = self.engine.make(self.source.locate(workspace), self.options, fresh, tell, builder)
        except OSError as error:
            if error.errno is not None:
                raise
            # transformers raises a bare OSError for every file that it cannot load
            raise LabError(
                f"the {self.title} cannot be built", " ".join(str(error).split()), code="engine-build-failed"
            ) from error
        written = [path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file() and path.stat().st_size]
        if missing := self._missing(written):
            raise LabError(
                f"the {self.engine.name} builder ended without an engine",
                f"there is no {missing}",
                code="engine-build-empty",
            )
        return {
            "key": self.key,
            "engine": self.engine.name,
            "source": self.source.spec,
            "weights": self.source.identity(workspace),
            "options": dict(self.options),
            **facts,
        }

    def _missing(self, files: Iterable[Path]) -> str:
        """The first pattern of an essential file that no file matches; "" if all are there."""
        present = list(files)
        for pattern in self.engine.essential:
            if not any(path.match(pattern) for path in present):
                return pattern
        return ""


def request(name: str, spec: str, options: Mapping[str, Any]) -> Build:
    """The engine with that name, weights and options. Raises LabError for what is unknown, and lists what exists."""
    if name not in ENGINES:
        raise LabError(f"there is no engine '{name}'", f"there are: {', '.join(ENGINES)}", code="engine-unknown")
    engine = ENGINES[name]
    if unknown := sorted(set(options) - set(engine.options)):
        raise LabError(
            f"the {name} engine has no option {', '.join(unknown)}",
            f"it has: {', '.join(engine.options)}",
            code="engine-option-unknown",
        )
    values = {key: option.read(key, options.get(key, option.default)) for key, option in engine.options.items()}
    return Build(engine, weights.parse_source(spec), values)


def skip_unused_imports() -> None:
    """Build an engine in 7.0 s instead of 10.5 s (openvino of tiny-llama); for a process that does nothing else."""
    # Imported where they are there: scikit-learn, with scipy and pandas, by transformers; and OpenVINO's telemetry,
    # which forks a process to tell Google Analytics of each step: 46 of them, 3 s.
    for name in ("sklearn", "openvino_telemetry"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
