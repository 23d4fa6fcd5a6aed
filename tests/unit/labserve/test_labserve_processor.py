"""What a model takes of the processor where nobody says: threads by its size, bf16 where the processor has it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from labserve import processor
from labserve.processor import SMALL, has_bf16, threads_of


@pytest.mark.parametrize("name", ["model.safetensors", "openvino_model.bin"])
@pytest.mark.parametrize(("asked", "size", "threads"), [(0, SMALL - 1, 1), (0, SMALL, 2), (3, 1, 3), (1, SMALL, 1)])
def test_the_size_of_the_weights_decides_where_nobody_else_did(
    tmp_path: Path, name: str, asked: int, size: int, threads: int
) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(size)
    assert threads_of(asked, str(tmp_path)) == threads


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "found"),
    [
        ("x86_64", "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16 f16c\n", True),
        ("x86_64", "processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("aarch64", "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("aarch64", "processor\t: 0\nFeatures\t: fp asimd asimddp\n", False),
        ("x86_64", "processor\t: 0\nflags\t\t: fpu avx2 f16c\n", False),
        ("aarch64", "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n", False),  # an emulator's: the host's file
        ("riscv64", "processor\t: 0\nisa\t\t: rv64imafdc\n", False),
        ("x86_64", "", False),
    ],
)
def test_bf16_is_taken_where_the_processor_says_that_it_multiplies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, cpuinfo: str, found: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo)
    monkeypatch.setattr(processor, "CPUINFO", file)
    has_bf16.cache_clear()
    try:
        assert has_bf16() is found
    finally:
        has_bf16.cache_clear()


def test_this_processor_is_read_as_pytorch_reads_it() -> None:
    can = pytest.importorskip("torch").cpu.get_capabilities()
    if can["architecture"] != "x86_64":
        pytest.skip("PyTorch names what an x86 processor has")
    assert has_bf16() is bool(can["avx512_bf16"] or can["amx_bf16"])
