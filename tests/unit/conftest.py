"""Unit tests compute with models so small that a second thread only waits for the first."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from model_cases import load

__all__ = ["load"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch, where a test module has imported it, computes on one thread: the other workers need the other cores."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
