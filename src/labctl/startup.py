"""What makes labctl start sooner than plain imports would, and what each trick gains.

Measured as processor time of a process on one machine, with and without the trick; one that gains less than 50 ms is
not kept. Those that are a matter of where an ``import`` or a decorator stands are named here and stay where they are.

==========================================================  =======
trick                                                          gain
==========================================================  =======
:func:`import_alone`: one module of tritonclient, no gRPC    300 ms
:func:`skip_unused_imports`: a build of an engine               3 s
``cli/main.py``: a command's module is imported when used    930 ms
``runtimes/docker_engine.py``: the SDK only where asked      100 ms
``texts.py``: YAML by libyaml, for the labs' manifests       100 ms
``trtllm/releases.py``: pydantic's ``defer_build``            60 ms
``runtimes/series.py``: clients are forks of one process     600 ms
==========================================================  =======
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

COLLECT_AFTER = 50_000  # new objects; importing the exporters makes many times as many, and none of them is garbage


def import_alone(name: str) -> ModuleType:
    """A module of a package without the package's own imports. Whoever imports the package later finds this one."""
    if name not in sys.modules:
        package, *folders, file = name.split(".")
        found = importlib.util.find_spec(package)
        folder = Path(next(iter((found and found.submodule_search_locations) or [package])))
        spec = importlib.util.spec_from_file_location(name, folder.joinpath(*folders, f"{file}.py"))
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def skip_unused_imports() -> None:
    """Halve the time of an engine's build; for a process that does nothing else."""
    # Imported where they are there: scikit-learn, with scipy and pandas, by transformers; and OpenVINO's telemetry,
    # which forks a process to tell Google Analytics of each step: 46 of them, 3 s.
    for name in ("sklearn", "openvino_telemetry"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    gc.set_threshold(COLLECT_AFTER)
