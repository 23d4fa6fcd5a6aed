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
    """Executes a package when something of it is wanted for the first time."""

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


class _There(importlib.abc.Loader):
    """For a module that reading another one has imported: there is nothing left to do but to give its loader back."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__:
            module.__spec__.loader = self._loader


def _execute(package: ModuleType) -> None:
    """Execute a package that was to come later."""
    if package.__spec__ and isinstance(package.__spec__.loader, _Later):
        package.__spec__.loader.read(package)


class DeferredModule(importlib.abc.MetaPathFinder):
    """Lets `package` come later: what is in `before` can be had of it at once, and so can its module `early`.

    It comes with its first other module, and with one whose name begins as one of the `heralds`.
    """

    def __init__(
        self,
        package: str,
        before: Mapping[str, Any],
        early: str = "",
        wanted: Callable[[], bool] = lambda: True,
        heralds: Sequence[str] = (),
    ) -> None:
        self._package, self._before, self._early, self._wanted = package, before, f"{package}.{early}", wanted
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
            there = name in sys.modules and sys.modules[name].__spec__
            if there:  # importlib goes by the spec of a module that is there
                there.loader = _There(there.loader)
                return there
        return None


def at_first_call(package: str, name: str) -> Callable[..., Any]:
    """The function of that name in a package that comes later."""

    def call(*args: Any, **named: Any) -> Any:
        _execute(sys.modules[package])
        return getattr(sys.modules[package], name)(*args, **named)

    return call


def _unmarked(fn: Any = None, *_: Any, **__: Any) -> Any:
    """One of MARKS, where nothing is compiled."""
    return (lambda function: function) if fn is None else fn


class _Spread:
    """Stands for a class while its package is not imported: no object is an instance of it."""


def _for_cpus_alone() -> bool:
    """Whether PyTorch is a build that uses no GPU: elsewhere a model may well be compiled."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and not torch.version.cuda


def defer_imports() -> None:
    """Let come later, or not at all, what transformers imports and no model of ours uses: half of a model's start."""
    # scikit-learn, if it is installed (the engines' exporter brings it), for a way of decoding; and OpenVINO's
    # telemetry, which forks a process to report each import to Google Analytics. None: "there is no such module".
    for name in ("sklearn", "openvino_telemetry"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    # PyTorch's compiler, for one class and to mark a few functions; all of scipy's optimizers, for one function.
    marks = dict.fromkeys(MARKS, _unmarked)
    assignment = {"linear_sum_assignment": at_first_call("scipy.optimize", "linear_sum_assignment")}
    # PyTorch's shapes of tensors that hold no numbers (transformers makes such), its export of graphs, and models that
    # are spread over processes (transformers asks whether a model is one).
    of_graphs = ("transformers", "torch._decomp", "torch._dynamo.utils", "torch._functorch.aot_autograd")
    sys.meta_path[:0] = [
        DeferredModule("torch._meta_registrations", {}, wanted=_for_cpus_alone, heralds=of_graphs),
        DeferredModule("torch.export", {}),
        DeferredModule("torch.distributed.fsdp", {"FullyShardedDataParallel": _Spread}),
        DeferredModule("torch._dynamo", marks, "_trace_wrapped_higher_order_op", _for_cpus_alone),
        DeferredModule("scipy.optimize", assignment),
    ]


def prepare_stub() -> None:
    """Nothing but inside Triton's stub, into which its own module is built."""
    if "c_python_backend_utils" in sys.builtin_module_names:
        if layer := os.environ.get(PACKAGES):
            sys.path.insert(0, layer)
        defer_imports()
