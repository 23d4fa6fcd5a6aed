"""The type that Hugging Face's weights are loaded in; tests/gpu asks the transformers of each image itself."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from labserve.text.hf_generate import Generator


@pytest.mark.parametrize(
    ("version", "argument"),
    [("4.31.0", "torch_dtype"), ("4.55.4", "torch_dtype"), ("4.56.0", "dtype"), ("5.5.4", "dtype")],
)
@pytest.mark.parametrize(("device", "served"), [("cpu", torch.float32), ("cuda:0", torch.float16)])
def test_weights_are_loaded_in_the_type_that_is_served_by_the_name_of_that_transformers(
    monkeypatch: pytest.MonkeyPatch, version: str, argument: str, device: str, served: Any
) -> None:
    import transformers  # here: another test may have imported it anew

    load = MagicMock()
    monkeypatch.setattr(transformers, "__version__", version)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", MagicMock())
    Generator("folder", device, 1)
    assert load.call_args.kwargs == {"local_files_only": True, argument: served}
