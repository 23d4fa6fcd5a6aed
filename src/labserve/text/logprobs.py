"""Log probabilities of a token and of its rivals, as vLLM's `logprobs` has them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from labserve.text.sampling import as_array

LOGPROBS = "logprobs"  # the parameter that asks for them, and the output
MOST = 20  # rivals of a token, as in OpenAI's API
LEAST = -9999.0  # for a token that is out of reach: JSON has no infinity


@dataclass(frozen=True, slots=True)
class LogProb:
    """vLLM's `Logprob` (vllm/logprobs.py): the natural logarithm, and the place among all tokens from 1 on."""

    logprob: float
    rank: int


def log_probs(logits: Any, token: int, count: int) -> dict[int, LogProb]:
    """The log probabilities of `token` and of the `count` likeliest tokens, by id.

    `logits` [vocab] are the model's own scores: temperature and cuts are not in them.
    """
    scores = as_array(logits).astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    best = np.argsort(-scores, kind="stable")[:count]
    ranks = {int(id): rank for rank, id in enumerate(best, 1)}
    ranks = {token: ranks.get(token) or 1 + int((scores > scores[token]).sum())} | ranks
    return {id: LogProb(max(float(scores[id]), LEAST), rank) for id, rank in ranks.items()}


def as_json(by_id: Mapping[int, LogProb], tokenizer: Tokenizer) -> str:
    """One token's, as vllm_backend's output `logprobs` writes those of a response: a list with an object for each."""
    spelled = {}
    for id, value in by_id.items():
        text = tokenizer.decode([id], skip_special_tokens=False)
        spelled[id] = {"logprob": value.logprob, "rank": value.rank, "decoded_token": text}
    return json.dumps([spelled])


def join_token_texts(texts: Sequence[str]) -> str:
    """The texts of several tokens (`as_json`) as one text for all of them."""
    return json.dumps([token for text in texts for token in json.loads(text)])
