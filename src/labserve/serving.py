"""Deferred imports: a model's process starts sooner. They belong to no lesson, and a model is the same without them.

Importing transformers takes 2.5 s of processor time instead of 6.5 s, in each process of a model. `labctl run iterative
--quick` takes 26 s instead of 28 to 31 s (medians of seven alternated runs on two cores). This happens only inside
Triton's stub; in any other process that imports labserve nothing changes.
"""

import importlib.abc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MARKS = ("allow_in_graph", "disable", "mark_static_address")  # of PyTorch's compiler
PACKAGES = "LABS_PACKAGES"  # the variable of a folder whose packages come before this environment's


class _Later(importlib.abc.Loader):
    """Executes a package when one of its attributes is read for the first time."""

    def __init__(self, loader: importlib.abc.Loader, before: Mapping[str, Any]) -> None:
        self._loader, self._before = loader, before

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._before)
        module.__class__ = _Unread

    def read(self, module: ModuleType) -> None:
        module.__class__ = ModuleType
        self._loader.exec_module(module)


class _Unread(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _execute(self)
        return getattr(self, name)


class _AlreadyImported(importlib.abc.Loader):
    """For a module that executing another one has imported: all that is left to do is to give its loader back."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__:
            module.__spec__.loader = self._loader


def _execute(package: ModuleType) -> None:
    """Execute a package whose import was deferred."""
    if package.__spec__ and isinstance(package.__spec__.loader, _Later):
        package.__spec__.loader.read(package)


class DeferredModule(importlib.abc.MetaPathFinder):
    """Defers the import of `package`. Until then it has the attributes in `before`, and its module `early`.

    It is executed before its first other module is imported, and before one whose name begins as one of the `heralds`.
    Nothing is deferred where `wanted` is false.
    """

    def __init__(
        self,
        package: str,
        before: Mapping[str, Any],
        early: str = "",
        wanted: Callable[[], bool] = lambda: True,
        heralds: Sequence[str] = (),
    ) -> None:
        self._package, self._before, self._wanted = package, before, wanted
        self._early = f"{package}.{early}"
        self._heralds = (f"{package}.", *heralds)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == self._package and self._wanted():
            spec = PathFinder.find_spec(name, path)
            if spec and spec.loader:
                spec.loader = _Later(spec.loader, self._before)
            return spec
        package = sys.modules.get(self._package)
        if name.startswith(self._heralds) and name != self._early and isinstance(package, _Unread):
            _execute(package)  # its modules import each other in an order that it begins
            spec = sys.modules[name].__spec__ if name in sys.modules else None
            if spec:  # importlib goes by the spec of a module that is imported
                spec.loader = _AlreadyImported(spec.loader)
                return spec
        return None


def at_first_call(package: str, name: str) -> Callable[..., Any]:
    """The function of that name in a package whose import is deferred: its first call executes the package."""

    def call(*args: Any, **named: Any) -> Any:
        _execute(sys.modules[package])
        return getattr(sys.modules[package], name)(*args, **named)

    return call


def _unmarked(fn: Any = None, *_: Any, **__: Any) -> Any:
    """One of MARKS, where nothing is compiled: a decorator, with or without arguments, that changes nothing."""
    return (lambda function: function) if fn is None else fn


class _NoInstances:
    """Stands for a class while its package is not imported: no object is an instance of it."""


def _for_cpus_alone() -> bool:
    """Whether PyTorch is a build that uses no GPU: elsewhere a model may well be compiled."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and not torch.version.cuda


def defer_imports() -> None:
    """Defer or prevent imports of transformers that no model of ours uses: they are half of a model's start."""
    # scikit-learn, if it is installed (the engines' exporter brings it), for a way of decoding; and OpenVINO's
    # telemetry, which forks a process to report each import to Google Analytics. None: "there is no such module".
    for name in ("sklearn", "openvino_telemetry"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    # PyTorch's compiler, for one class and to mark a few functions; all of scipy's optimizers, for one function.
    marks = dict.fromkeys(MARKS, _unmarked)
    assignment = {"linear_sum_assignment": at_first_call("scipy.optimize", "linear_sum_assignment")}
    # PyTorch's shapes of tensors that hold no numbers (transformers makes such), its export of graphs, and models that
    # are spread over processes (transformers asks whether a model is one).
    graph_modules = ("transformers", "torch._decomp", "torch._dynamo.utils", "torch._functorch.aot_autograd")
    sys.meta_path[:0] = [
        DeferredModule("torch._meta_registrations", {}, wanted=_for_cpus_alone, heralds=graph_modules),
        DeferredModule("torch.export", {}),
        DeferredModule("torch.distributed.fsdp", {"FullyShardedDataParallel": _NoInstances}),
        DeferredModule("torch._dynamo", marks, "_trace_wrapped_higher_order_op", _for_cpus_alone),
        DeferredModule("scipy.optimize", assignment),
    ]


def prepare_stub() -> None:
    """Prepare Triton's stub, into which its own module is built; in any other process, do nothing."""
    if "c_python_backend_utils" in sys.builtin_module_names:
        if layer := os.environ.get(PACKAGES):
            sys.path.insert(0, layer)
        defer_imports()
