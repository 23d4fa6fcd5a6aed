"""A request to ``codegen-350M-mono-gptj`` as its tensors say it: one row for each text, every refusal named."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labserve.model_shape import ModelShape
from labserve.params import BadInput, Read, check_range, read_word_lists
from labserve.slot_scheduler import SlotRequest
from labserve.text.sampling import Sampler, likeliest

MOST_TOP_K = 2**32 - 1
Array = np.ndarray[Any, Any]
OUTPUT_IDS, SEQUENCE_LENGTH, LOG_PROBS = "output_ids", "sequence_length", "output_log_probs"  # of ``tensorrt_llm``


@dataclass(slots=True, eq=False)
class TextRow(SlotRequest):
    """A text in the making, and how its next tokens are chosen, independently of the others in the batch."""

    ids: list[int]
    prompt: int  # how many of the ids are the prompt's
    limit: int  # tokens to generate at most
    end_id: int | None  # ends the text earlier; one outside the vocabulary never comes
    sampler: Sampler
    repetition_penalty: float = 1.0
    bad_words: list[list[int]] = field(default_factory=list)
    stop_words: list[list[int]] = field(default_factory=list)
    wants_log_probs: bool = False
    log_probs: list[float] = field(default_factory=list)

    def restart(self) -> "TextRow":
        """As it was before its first token: a batch that failed begins again, each row alone."""
        del self.ids[self.prompt :]
        self.log_probs.clear()
        self.sampler.restart()
        self.error, self.finished, self.why = None, False, None
        return self

    @property
    def output(self) -> list[int]:
        return self.ids[self.prompt :]

    @property
    def made(self) -> int:
        return len(self.ids) - self.prompt

    def _stopped(self) -> bool:
        """Whether its last token is the end token, or ends a stop word."""
        made = self.output if self.stop_words else []
        return self.ids[-1] == self.end_id or any(made[-len(word) :] == word for word in self.stop_words)

    @property
    def plain(self) -> bool:
        """Whether the token with the best score is the one."""
        return self.sampler.temperature == 0.0 and self.repetition_penalty == 1.0 and not self.bad_words

    def choose(self, logits: Array) -> int:
        """The next token, by the scores `logits` [vocabulary]."""
        scores = logits.copy()
        if self.repetition_penalty != 1.0:  # as published (CTRL): what has been said becomes less likely
            seen = sorted(set(self.ids))
            known = scores[seen]
            scores[seen] = np.where(known < 0, known * self.repetition_penalty, known / self.repetition_penalty)
        for word in self.bad_words:
            *start, last = word
            if last < len(scores) and (not start or self.ids[-len(start) :] == start):
                scores[last] = -np.inf
        if self.sampler.temperature == 0.0 or not np.isfinite(scores.max()):  # nothing is left to draw from
            return int(scores.argmax())
        return self.sampler.draw(scores)

    def accept(self, token: int) -> bool:
        """Append the token; whether the text goes on after it. Else it is finished."""
        self.ids.append(token)
        if self.made >= self.limit:
            self.finish("length")
        elif self._stopped():
            self.finish("stop")
        return not self.finished


def advance(rows: list[TextRow], logits: Array) -> list[int]:
    """One more token for each row, by its scores `logits` [rows, vocabulary]; the places of the rows that go on."""
    best, tokens = likeliest(logits)
    for place, (row, score) in enumerate(zip(rows, best, strict=True)):
        if not math.isfinite(score):
            row.fail(ArithmeticError("the model's scores are not finite numbers"))
        elif not row.plain:
            tokens[place] = row.choose(logits[place])
    if any(row.wants_log_probs for row in rows):
        with np.errstate(invalid="ignore"):  # a row of infinities has its error already
            scores = logits - logits.max(axis=-1, keepdims=True)
            chosen = scores[np.arange(len(rows)), tokens] - np.log(np.exp(scores).sum(axis=-1))
        for row, value in zip(rows, chosen.tolist(), strict=True):
            row.log_probs.append(value)
    return [place for place, row in enumerate(rows) if row.error is None and row.accept(tokens[place])]


def parse_codegen_request(read: Read, shape: ModelShape) -> list[TextRow]:
    """The rows of a request, all of them or none. Raises BadInput."""
    prompts = _prompts(read, shape)
    count = len(prompts)

    def column(name: str, default: Any, check: Callable[[float], float] = lambda value: value) -> list[Any]:
        values = read(name)
        if values is None:
            return [default] * count
        if values.size != count:
            raise BadInput(name, f"one value a row, please; {values.size} for {count} rows")
        return [check(value) for value in values.reshape(-1).tolist()]

    def within(name: str, default: float, least: float, most: float) -> list[Any]:
        return column(name, default, lambda value: check_range(name, value, least, most))

    limits = column("request_output_len", 0)
    for prompt, limit in zip(prompts, limits, strict=True):
        room = shape.context - len(prompt)
        if not 1 <= limit <= room:
            raise BadInput("request_output_len", f"{limit:,} is out of range; it must be from 1 to {room:,} here")
    if any(width != 1 for width in column("beam_width", 1)):
        raise BadInput("beam_width", "this engine has no beam search; it must be 1")
    temperatures = within("temperature", 1.0, 0.0, 100.0)
    top_ks = within("runtime_top_k", 0, 0, MOST_TOP_K)
    top_ps = within("runtime_top_p", 0.0, 0.0, 1.0)
    penalties = within("repetition_penalty", 1.0, 0.0, 1e3)
    seeds = column("random_seed", None)
    ends = column("end_id", shape.end_id)
    log_probs = column("is_return_log_probs", False)
    bad, stop = _words(read, "bad_words_list", count), _words(read, "stop_words_list", count)
    return [
        TextRow(
            ids=prompt,
            prompt=len(prompt),
            limit=limits[i],
            end_id=ends[i],
            sampler=_sampler(temperatures[i], top_ks[i], top_ps[i], seeds[i]),
            repetition_penalty=penalties[i] or 1.0,  # 0 is off, as with the others
            bad_words=bad[i],
            stop_words=stop[i],
            wants_log_probs=bool(log_probs[i]),
        )
        for i, prompt in enumerate(prompts)
    ]


def _sampler(temperature: float, top_k: int, top_p: float, seed: int | None) -> Sampler:
    """Greedy unless something asks for more, as in FasterTransformer: top_k 1 is greedy, neutral values are neutral.

    top_p 0 is off there.
    """
    asked = top_k > 1 or top_p > 0.0 or temperature != 1.0
    return Sampler(temperature if asked and top_k != 1 else 0.0, top_k, top_p or 1.0, seed)


def _prompts(read: Read, shape: ModelShape) -> list[list[int]]:
    ids, lengths = read("input_ids"), read("input_lengths")
    if lengths.size != len(ids):
        raise BadInput("input_lengths", f"one value a row, please; {lengths.size} for {len(ids)} rows")
    prompts = []
    for row, length in zip(ids.reshape(len(ids), -1), lengths.reshape(-1).tolist(), strict=True):
        if not length or not row.size:
            raise BadInput("input_lengths", "the prompt is empty")
        prompt: list[int] = row[:length].tolist()  # a length beyond the row means all of it
        if len(prompt) >= shape.context:
            words = f"{len(prompt):,} tokens; the model sees {shape.context:,}, the answer included"
            raise BadInput("input_ids", words)
        if max(prompt) >= shape.vocabulary:
            raise BadInput("input_ids", f"ids must be from 0 to {shape.vocabulary - 1:,}")
        prompts.append(prompt)
    return prompts


def _words(read: Read, name: str, count: int) -> list[list[list[int]]]:
    """The words of each row. A list that names no word of the vocabulary names none that could occur."""
    tensor = read(name)
    if tensor is None:
        return [[]] * count
    if tensor.ndim != 3 or tensor.shape[:2] != (count, 2):
        raise BadInput(name, f"the shape must be [{count}, 2, n]; it is {list(tensor.shape)}")
    return [[word for word in read_word_lists(row) if min(word) >= 0] for row in tensor]


def outputs(rows: list[TextRow]) -> dict[str, Array]:
    """The four tensors of an answer, one row a text (and one beam): [n, 1, width], [n, 1], [n, 1], [n, 1, limit].

    Log probabilities are the model's own, before temperature and the like; zeros if they were not asked for.
    """
    width = max(row.prompt + row.limit for row in rows)
    ids = np.zeros((len(rows), 1, width), dtype=np.uint32)
    log_probs = np.zeros((len(rows), 1, max(row.limit for row in rows)), dtype=np.float32)
    for place, row in enumerate(rows):
        ids[place, 0, : len(row.ids)] = row.ids
        ids[place, 0, len(row.ids) :] = row.end_id or 0
        if row.wants_log_probs:
            log_probs[place, 0, : len(row.log_probs)] = row.log_probs
    return {
        "output_ids": ids,
        "sequence_length": np.array([[len(row.ids)] for row in rows], dtype=np.uint32),
        "cum_log_probs": log_probs.sum(axis=-1, dtype=np.float32),
        "output_log_probs": log_probs,
    }


# -- a row as a request to TensorRT-LLM's ``tensorrt_llm`` -------------------------------------------------------------


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
