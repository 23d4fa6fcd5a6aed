"""A row of ``codegen-350M-mono-gptj`` as a request to TensorRT-LLM's ``tensorrt_llm``, and the answer as its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from labserve.codegen.request import TextRow
from labserve.params import BadInput

Array = np.ndarray[Any, Any]
OUTPUT_IDS, SEQUENCE_LENGTH, LOG_PROBS = "output_ids", "sequence_length", "output_log_probs"
INTEGERS = {"UINT32": np.uint32, "INT32": np.int32}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The inputs of a release's ``tensorrt_llm``.

    ``integers``: the datatype of its whole numbers, UINT32 or INT32. ``words_and_scores``: whether it knows stop
    words, bad words, lengths and log probabilities; 0.5.0 does not.
    """

    integers: str
    words_and_scores: bool
    vocabulary: int

    def inputs(self, row: TextRow) -> dict[str, Array]:
        """The request's tensors, each with a batch of one. Raises BadInput for what this release cannot do."""
        kind, sampler = INTEGERS[self.integers], row.sampler
        greedy = sampler.temperature == 0.0
        tensors: dict[str, Array] = {
            "input_ids": np.array([row.ids], dtype=np.int32),
            "input_lengths": np.array([[row.prompt]], dtype=np.int32),
            "request_output_len": np.array([[row.limit]], dtype=kind),
            "beam_width": np.array([[1]], dtype=kind),
            # With both off it would be greedy: 1.0 draws from all that is left.
            "runtime_top_k": np.array([[1 if greedy else min(sampler.top_k, 2**31 - 1)]], dtype=kind),
            "runtime_top_p": np.array([[0.0 if greedy else sampler.top_p]], dtype=np.float32),
            "temperature": np.array([[1.0 if greedy else sampler.temperature]], dtype=np.float32),
            "repetition_penalty": np.array([[row.repetition_penalty]], dtype=np.float32),
            "random_seed": np.array([[sampler.seed]], dtype=np.uint64),
        }
        if row.end_id is not None and row.end_id < self.vocabulary:
            tensors |= {name: np.array([[row.end_id]], dtype=kind) for name in ("end_id", "pad_id")}
        if self.words_and_scores:
            lists = {"stop_words_list": row.stop_words, "bad_words_list": row.bad_words}
            tensors |= {name: _flat(words) for name, words in lists.items() if words}
            tensors["return_log_probs"] = np.array([[row.wants_log_probs]])
        elif row.bad_words:
            raise BadInput("bad_words_list", "this release of TensorRT-LLM cannot forbid words")
        return tensors

    def outputs(self, row: TextRow) -> list[str]:
        """The outputs to ask for. A release without log probabilities has ``output_ids`` alone.

        0.17.0 refuses a request that does not ask for both ``output_ids`` and ``sequence_length``.
        """
        if not self.words_and_scores:
            return [OUTPUT_IDS]
        scores = [LOG_PROBS] if row.wants_log_probs else []
        return [OUTPUT_IDS, SEQUENCE_LENGTH, *scores]


def finish_row(row: TextRow, answer: Mapping[str, Array]) -> None:
    """End a row with an answer's tensors by their names.

    ``output_ids`` is [1, 1, prompt and continuation], ``sequence_length`` says how many of these count, and
    ``output_log_probs`` is [1, 1, continuation]. The engine may fill up an answer that it ended early; the row's own
    rules say where it ended. Stop words that the engine did not get are found here, after it has gone on in vain.
    """
    ids = answer[OUTPUT_IDS].reshape(-1)
    length = int(answer[SEQUENCE_LENGTH].reshape(-1)[0]) if SEQUENCE_LENGTH in answer else len(ids)
    for token in ids[row.prompt : min(length, row.prompt + row.limit)].tolist():
        if not row.accept(token):
            break
    if LOG_PROBS in answer:
        row.log_probs = answer[LOG_PROBS].reshape(-1)[: len(row.ids) - row.prompt].tolist()


def _flat(words: list[list[int]]) -> Array:
    """[1, 2, n]: the ids of all words one after the other, and where each ends (-1 where there is none)."""
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist()
    return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]], dtype=np.int32)
