"""Without a number of threads a small model computes with one, and a large one with two."""

from __future__ import annotations

from pathlib import Path

import pytest

from labserve.threads import SMALL, threads_of


@pytest.mark.parametrize("name", ["model.safetensors", "openvino_model.bin"])
@pytest.mark.parametrize(("asked", "size", "threads"), [(0, SMALL - 1, 1), (0, SMALL, 2), (3, 1, 3), (1, SMALL, 1)])
def test_the_size_of_the_weights_decides_where_nobody_else_did(
    tmp_path: Path, name: str, asked: int, size: int, threads: int
) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(size)
    assert threads_of(asked, str(tmp_path)) == threads
