"""Hugging Face's `generate` for a batch of prompts, greedy, each with its own number of tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils
from transformers import AutoModelForCausalLM, AutoTokenizer

from labserve.params import BadInput, text


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and how many are wanted after them."""

    ids: list[int]
    limit: int


class Generator:
    """A model and its tokenizer out of one Hugging Face folder."""

    def __init__(self, folder: str, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        dtype = torch.float32 if device == "cpu" else torch.float16
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **{dtype_argument(): dtype})
        self._model = model.to(device).eval()
        self.context = int(self._model.config.max_position_embeddings)
        pad = self.tokenizer.pad_token_id
        self._pad = 0 if pad is None else pad
        self._model.generation_config.eos_token_id = None  # each answer is exactly as long as was asked for

    def generate(self, prompts: list[Prompt]) -> list[str]:
        """Prompt and continuation of each, as text. The batch runs until its longest answer is done."""
        if not prompts:
            return []
        longest = max(len(prompt.ids) for prompt in prompts)
        # Generation goes on at the right, so that the padding stands on the left.
        fill = [longest - len(prompt.ids) for prompt in prompts]
        device = self._model.device
        ids = torch.tensor([[self._pad] * n + p.ids for n, p in zip(fill, prompts, strict=True)], device=device)
        mask = torch.tensor([[0] * n + [1] * len(p.ids) for n, p in zip(fill, prompts, strict=True)], device=device)
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(prompt.limit for prompt in prompts),
                do_sample=False,
                pad_token_id=self._pad,
            )
        known = len(self.tokenizer)
        rows = [
            [i for i in row[n : longest + prompt.limit].tolist() if i < known]
            for row, n, prompt in zip(out, fill, prompts, strict=True)
        ]
        return [self.tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def dtype_argument() -> str:
    """What this transformers calls the type to load weights in; loaded in fp32 first, 7B take 27 GB of memory.

    The images of NVIDIA's releases have transformers from 4.31 on.
    """
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def read_prompts(request: Any, generator: Generator) -> list[Prompt]:
    """The prompts of a request: as many `max_tokens` as texts, or one for all. Raises BadInput."""
    texts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)
    limits = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy().reshape(-1).tolist()
    if len(limits) not in (1, len(texts)):
        raise BadInput("max_tokens", f"{len(limits)} numbers for {len(texts)} texts")
    prompts = []
    for raw, limit in zip(texts, limits * (len(texts) // len(limits) or 1), strict=True):
        ids = generator.tokenizer.encode(text(raw, "text_input", 64 * generator.context))
        room = generator.context - len(ids)
        if not ids or room < 1:
            raise BadInput("text_input", f"{len(ids):,} tokens; the model sees {generator.context:,}")
        if not 1 <= limit <= room:
            raise BadInput("max_tokens", f"{limit:,} is out of range; it must be from 1 to {room:,} here")
        prompts.append(Prompt(ids, limit))
    return prompts


def text_tensor(texts: list[str], shape: tuple[int, ...]) -> Any:
    """The output tensor."""
    return pb_utils.Tensor("text_output", np.array([t.encode() for t in texts], dtype=object).reshape(shape))
