"""A process that serves begins with no more than it needs; others are as ever."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from labserve import serving

CPU_BUILD = pytest.mark.skipif(
    "+cpu" not in importlib.metadata.version("torch"),
    reason="PyTorch is not named as a CPU build; with another build nothing comes late",
)
IN_TRITON = "import sys; sys.builtin_module_names += ('c_python_backend_utils',)\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


BODY = """
import sys
sys.slow_package_was_read = True
mark = 6
def add(one, two):
    return one + two
from . import second
"""


@pytest.mark.parametrize("by", ["module", "name", "call"])
def test_a_package_that_may_come_later_is_executed_when_something_of_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    folder = tmp_path / "slow_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(BODY)
    (folder / "first.py").write_text("own = 7\n")
    (folder / "second.py").write_text(
        "import sys\nfrom slow_package import mark\nknown = [mark]\nsys.times_read += 1\n"
    )
    later = serving.DeferredModule(
        "slow_package", {"mark": 0, "add": serving.at_first_call("slow_package", "add")}, "first"
    )
    monkeypatch.setattr(sys, "meta_path", [later, *sys.meta_path])
    monkeypatch.setattr(sys, "slow_package_was_read", False, raising=False)
    monkeypatch.setattr(sys, "times_read", 0, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    first = importlib.import_module("slow_package.first")
    package: Any = importlib.import_module("slow_package")
    assert (first.own, package.mark, package.first) == (7, 0, first)
    with pytest.raises(AttributeError):
        _ = package.__wrapped__
    assert not sys.slow_package_was_read  # type: ignore[attr-defined]
    if by == "call":
        assert package.add(2, 3) == 5
    elif by == "module":  # which wants what the package says, not what stood there before
        assert importlib.import_module("slow_package.second").known == [6]
    else:
        assert package.second.known == [6]
    assert sys.slow_package_was_read  # type: ignore[attr-defined]
    assert package.mark == 6
    assert package.second is importlib.import_module("slow_package.second")
    assert sys.times_read == 1  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.startswith("slow_package")]:
        del sys.modules[name]


@pytest.mark.night
@CPU_BUILD
def test_what_pytorch_computes_without_numbers_comes_when_it_is_wanted() -> None:
    done = run(f"""{IN_TRITON}
import labserve.params, os, torch
print("torch._decomp" in sys.modules)
for wanted in (
    "from torch._decomp import decomposition_table; print(len(decomposition_table) > 1000)",
    "print(torch.vmap(lambda x: x > 0)(torch.ones(1)).item())",
    "print(torch.compile(lambda x: x > 0, backend='eager')(torch.ones(1)).item())",
):
    sys.stdout.flush()
    if not os.fork():
        exec(wanted)
        sys.exit()
    os.wait()
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True", "True", "True"]


@pytest.mark.night
@CPU_BUILD
def test_a_hugging_face_model_serves_without_the_compiler_and_its_process_ends_in_good_order() -> None:
    done = run(f"""{IN_TRITON}
from labserve.text.hf_generate import Generator, Prompt
model = Generator("labs/shared/models/tiny-llama", "cpu", 1)
print(model.generate([Prompt([5, 6, 7], 4), Prompt([5, 6], 3)]))
print([name for name in ("torch._dynamo.convert_frame", "sklearn", "scipy.linalg") if sys.modules.get(name)], end="")
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n[]")


def test_a_model_that_has_an_engine_starts_without_pytorch() -> None:
    code = "import sys, labserve.codegen.batch_decoder, labserve.codegen.request; sys.exit('torch' in sys.modules)"
    assert run(code).returncode == 0


def test_a_model_with_openvino_tells_nobody_of_its_use(tmp_path: Path) -> None:
    code = f"{IN_TRITON}import os; os.environ['HOME'] = {str(tmp_path)!r}\nimport labserve.inflight.openvino_engine"
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_outside_triton_nothing_changes() -> None:
    code = "import sys; was = len(sys.meta_path); import labserve.params\n"
    assert run(f"{code}sys.exit(len(sys.meta_path) != was or 'sklearn' in sys.modules)").returncode == 0
