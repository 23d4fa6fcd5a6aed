"""A row of ``codegen-350M-mono-gptj`` as a request to TensorRT-LLM's ``tensorrt_llm``, and the answer as its end."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from labserve.codegen.request import TextRow

Array = np.ndarray[Any, Any]
OUTPUT_IDS, SEQUENCE_LENGTH, LOG_PROBS = "output_ids", "sequence_length", "output_log_probs"


def engine_inputs(row: TextRow, vocabulary: int) -> dict[str, Array]:
    """The request's tensors, each with a batch of one."""
    sampler = row.sampler
    greedy = sampler.temperature == 0.0
    tensors: dict[str, Array] = {
        "input_ids": _whole([row.ids]),
        "input_lengths": _whole([[row.prompt]]),
        "request_output_len": _whole([[row.limit]]),
        "beam_width": _whole([[1]]),
        # With both off it would be greedy: 1.0 draws from all that is left.
        "runtime_top_k": _whole([[1 if greedy else min(sampler.top_k, 2**31 - 1)]]),
        "runtime_top_p": np.array([[0.0 if greedy else sampler.top_p]], dtype=np.float32),
        "temperature": np.array([[1.0 if greedy else sampler.temperature]], dtype=np.float32),
        "repetition_penalty": np.array([[row.repetition_penalty]], dtype=np.float32),
        "random_seed": np.array([[sampler.seed]], dtype=np.uint64),
        "return_log_probs": np.array([[row.wants_log_probs]]),
    }
    if row.end_id is not None and row.end_id < vocabulary:
        tensors |= {name: _whole([[row.end_id]]) for name in ("end_id", "pad_id")}
    lists = {"stop_words_list": row.stop_words, "bad_words_list": row.bad_words}
    return tensors | {name: _flat(words) for name, words in lists.items() if words}


def engine_outputs(row: TextRow) -> list[str]:
    """The outputs to ask for: the engine refuses a request without both ``output_ids`` and ``sequence_length``."""
    return [OUTPUT_IDS, SEQUENCE_LENGTH, *([LOG_PROBS] if row.wants_log_probs else [])]


def finish_row(row: TextRow, answer: Mapping[str, Array]) -> None:
    """End a row with an answer's tensors by their names.

    ``output_ids`` is [1, 1, prompt and continuation], ``sequence_length`` says how many of these count, and
    ``output_log_probs`` is [1, 1, continuation]. The engine may fill up an answer that it ended early; the row's own
    rules say where it ended.
    """
    ids = answer[OUTPUT_IDS].reshape(-1)
    length = int(answer[SEQUENCE_LENGTH].reshape(-1)[0])
    for token in ids[row.prompt : min(length, row.prompt + row.limit)].tolist():
        if not row.accept(token):
            break
    if LOG_PROBS in answer:
        row.log_probs = answer[LOG_PROBS].reshape(-1)[: len(row.ids) - row.prompt].tolist()


def _whole(values: list[list[int]]) -> Array:
    return np.array(values, dtype=np.int32)


def _flat(words: list[list[int]]) -> Array:
    """[1, 2, n]: the ids of all words one after the other, and where each ends (-1 where there is none)."""
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist()
    return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]], dtype=np.int32)
