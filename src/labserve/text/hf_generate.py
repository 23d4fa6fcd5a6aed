"""Hugging Face's `generate` for a batch of prompts, greedy, each with its own number of tokens."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labserve.params import BadInput, Read, Refusal, text
from labserve.processor import threads_of

LOOK_AROUND = 8  # steps between two questions whether the clients are still there


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's token ids, how many tokens are to follow, and whether its client has gone."""

    ids: list[int]
    limit: int
    gone: Callable[[], bool] = lambda: False


class Generator:
    """A model and its tokenizer out of one Hugging Face folder; a batch may take `most_seconds`."""

    def __init__(self, folder: str, device: str, threads: int, most_seconds: float = 600.0) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # takes seconds

        self._most_seconds = most_seconds
        torch.set_num_threads(threads_of(threads, folder))
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        dtype = torch.float32 if device == "cpu" else torch.float16
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **{dtype_argument(): dtype})
        self._model = model.to(device).eval()
        self.context = int(self._model.config.max_position_embeddings)
        pad = self.tokenizer.pad_token_id
        self._pad = 0 if pad is None else pad
        self._model.generation_config.eos_token_id = None  # each answer is exactly as long as was asked for

    def generate(self, prompts: Sequence[Prompt]) -> list[str | Exception]:
        """Each prompt with its continuation as text, or the error.

        The batch runs until its longest answer is done, but not for clients that have gone, and not for ever.
        """
        if not prompts:
            return []
        from transformers import StoppingCriteriaList

        stop = _Stop(prompts, self._most_seconds)
        longest = max(len(prompt.ids) for prompt in prompts)
        # Generation goes on at the right, so that the padding stands on the left.
        padding = [longest - len(prompt.ids) for prompt in prompts]
        ids = [[self._pad] * count + prompt.ids for count, prompt in zip(padding, prompts, strict=True)]
        mask = [[0] * count + [1] * (longest - count) for count in padding]
        device = self._model.device
        with torch.inference_mode():
            out = self._model.generate(
                torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_new_tokens=max(prompt.limit for prompt in prompts),
                do_sample=False,
                pad_token_id=self._pad,
                stopping_criteria=StoppingCriteriaList([stop]),
            )
        known = len(self.tokenizer)
        answers: list[str | Exception] = []
        for place, (row, count, prompt) in enumerate(zip(out.tolist(), padding, prompts, strict=True)):
            spelled = [id for id in row[count : longest + prompt.limit] if id < known]
            words = self.tokenizer.decode(spelled, skip_special_tokens=True)
            answers.append(stop.ended.get(place, words))
        return answers


class _Stop:
    """Which rows need no further token: they have enough, their client is gone, or the time is over."""

    def __init__(self, prompts: Sequence[Prompt], most_seconds: float) -> None:
        self.ended: dict[int, Exception] = {}
        self._prompts, self._most_seconds = prompts, most_seconds
        self._deadline, self._made = time.monotonic() + most_seconds, 0

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        self._made += 1
        for place, prompt in enumerate(self._prompts):
            if self._made >= prompt.limit or place in self.ended:
                continue
            if time.monotonic() > self._deadline:
                progress = f"{self._made:,} of {prompt.limit:,} tokens are made"
                words = f"after {self._most_seconds:g} s {progress}; ask for fewer"
                self.ended[place] = BadInput("max_tokens", words)
            elif self._made % LOOK_AROUND == 0 and prompt.gone():
                self.ended[place] = Refusal("the request was cancelled by its client")
        done = [self._made >= prompt.limit or place in self.ended for place, prompt in enumerate(self._prompts)]
        return torch.tensor(done, device=ids.device)


def dtype_argument() -> str:
    """This transformers' name of the argument for the weights' type. Loaded in fp32 first, 7B take 27 GB of memory.

    The image of TensorRT-LLM has a transformers of before 4.56, which renamed it.
    """
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if version >= (4, 56) else "torch_dtype"


def read_prompts(read: Read, gone: Callable[[], bool], generator: Generator) -> list[Prompt]:
    """The prompts of a request: as many `max_tokens` as texts, or one for all. Raises BadInput."""
    texts = read("text_input").reshape(-1)
    limits = read("max_tokens").reshape(-1).tolist()
    if not len(texts):
        raise BadInput("text_input", "there is no text in it")
    if len(limits) not in (1, len(texts)):
        raise BadInput("max_tokens", f"{len(limits)} numbers for {len(texts)} texts")
    prompts = []
    if len(limits) == 1:
        limits *= len(texts)
    for raw, limit in zip(texts, limits, strict=True):
        ids = generator.tokenizer.encode(text(raw, "text_input", 64 * generator.context))
        room = generator.context - len(ids)
        if not ids or room < 1:
            raise BadInput("text_input", f"{len(ids):,} tokens; the model sees {generator.context:,}")
        if not 1 <= limit <= room:
            raise BadInput("max_tokens", f"{limit:,} is out of range; it must be from 1 to {room:,} here")
        prompts.append(Prompt(ids, limit, gone))
    return prompts


def describe_batch(
    prompts: Sequence[Prompt], texts: Sequence[str | Exception], names: Sequence[str], wanted: bool
) -> dict[str, Any]:
    """The step log's fields of a batch that ran to its end; texts only if they are `wanted`."""
    failed = [isinstance(text, Exception) for text in texts]
    return {
        "rows": list(range(len(prompts))),
        "tokens": [len(prompt.ids) for prompt in prompts],
        "made": [0 if bad else prompt.limit for prompt, bad in zip(prompts, failed, strict=True)],
        "texts": ["" if isinstance(text, Exception) else text for text in texts] if wanted else None,
        "joined": list(names),
        "ended": {name: "failed" if bad else "length" for name, bad in zip(names, failed, strict=True)},
    }


def text_array(texts: Sequence[str], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The output tensor's texts."""
    return np.array([t.encode() for t in texts], dtype=object).reshape(shape)
