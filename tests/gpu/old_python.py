"""Imports every module of labsched and labserve and every model.py, on whatever Python runs this file.

What is not installed there (PyTorch, and what computes with it) is stood in for: its names can be imported, no more.
Prints how many files were imported; fails at the first that cannot be.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from unittest.mock import MagicMock

from checkout import ROOT

STOOD_IN_FOR = ("torch", "transformers", "safetensors", "onnxruntime", "openvino", "openvino_genai")


class _StandIn(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last, so that what is installed is imported itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name.partition(".")[0] in STOOD_IN_FOR else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def main() -> None:
    sys.meta_path.append(_Finder())
    importlib.import_module("fake_backend")  # Triton's own module
    sources, models = ROOT / "src", sorted((ROOT / "model_repos").glob("*/*/1/model.py"))
    modules = sorted(path for package in ("labsched", "labserve") for path in (sources / package).rglob("*.py"))
    for path in modules:
        importlib.import_module(".".join(path.relative_to(sources).with_suffix("").parts).removesuffix(".__init__"))
    for number, path in enumerate(models):
        spec = importlib.util.spec_from_file_location(f"model_{number}", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.TritonPythonModel, path
    print(len(modules) + len(models))


if __name__ == "__main__":
    main()
