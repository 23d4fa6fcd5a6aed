"""Prints what lab 03's two Hugging Face models answer, and in which type weights are loaded when half is asked for.

As JSON: version of transformers, answers by model. Another transformers may come first on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys

import fake_backend
import numpy as np
import torch
import transformers

from labserve.text.hf_generate import dtype_argument

PROMPTS = ((b"The fox", 6), (b"I am going to", 3))
SHAPES = {"llama-python/llama-python": (1,), "llama-python/llama-python-batched": (1, 1)}


def main() -> None:
    answers = {}
    for path, shape in SHAPES.items():
        model = fake_backend.load(path, model_path=sys.argv[1], most_seconds=60, run_dir="")
        asked = [
            fake_backend.Request(
                {
                    "text_input": np.array([prompt], dtype=object).reshape(shape),
                    "max_tokens": np.array([tokens]).reshape(shape),
                }
            )
            for prompt, tokens in PROMPTS
        ]
        responses = model.execute(asked)
        assert not any(response.error for response in responses), fake_backend.LOG
        answers[path] = [response.outputs["text_output"].reshape(-1)[0].decode() for response in responses]
    half = {dtype_argument(): torch.float16}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], local_files_only=True, **half)
    answers["dtype"] = [str(loaded.dtype)]
    print(json.dumps([transformers.__version__, answers]))


if __name__ == "__main__":
    main()
