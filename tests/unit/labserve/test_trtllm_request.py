"""Lab 04's rows as requests to TensorRT-LLM's `tensorrt_llm`, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labserve.codegen.request import TextRow, engine_inputs, engine_outputs, finish_row, outputs
from labserve.params import read_word_lists
from labserve.text.sampling import Sampler

VOCABULARY = 800


def row(**given: Any) -> TextRow:
    fields: dict[str, Any] = {"ids": [5, 6, 7], "prompt": 3, "limit": 4, "end_id": None, "sampler": Sampler(seed=9)}
    return TextRow(**{**fields, **given})


def request(asked: TextRow) -> dict[str, Any]:
    return engine_inputs(asked, VOCABULARY)


def value(tensors: dict[str, Any], name: str) -> Any:
    return tensors[name].reshape(-1).tolist()[0]


def test_a_request_is_a_batch_of_one_in_the_engines_own_integers() -> None:
    found = request(row())
    assert found["input_ids"].tolist() == [[5, 6, 7]]
    assert {len(tensor) for tensor in found.values()} == {1}
    whole = ("input_ids", "input_lengths", "request_output_len", "runtime_top_k")
    assert {found[name].dtype for name in whole} == {np.dtype(np.int32)}


def test_words_are_one_list_of_ids_and_their_ends() -> None:
    found = request(row(stop_words=[[1, 2], [3]], bad_words=[[4]]))
    assert found["stop_words_list"].shape == (1, 2, 3)
    assert read_word_lists(found["stop_words_list"]) == [[1, 2], [3]]
    assert read_word_lists(found["bad_words_list"]) == [[4]]


@pytest.mark.parametrize(
    ("sampler", "top_k", "top_p", "temperature"),
    [
        (Sampler(0.0), 1, 0.0, 1.0),
        (Sampler(0.7), 0, 1.0, 0.7),  # both off would be greedy for the engine
        (Sampler(1.3, top_k=40, top_p=0.95), 40, 0.95, 1.3),
    ],
)
def test_greedy_stays_greedy_and_sampling_sampling(
    sampler: Sampler, top_k: int, top_p: float, temperature: float
) -> None:
    found = request(row(sampler=sampler))
    assert value(found, "runtime_top_k") == top_k
    assert value(found, "runtime_top_p") == pytest.approx(top_p)
    assert value(found, "temperature") == pytest.approx(temperature)


def test_the_seed_is_the_clients() -> None:
    assert value(request(row(sampler=Sampler(1.0, seed=2**63 + 1))), "random_seed") == 2**63 + 1


def test_an_end_id_outside_the_vocabulary_is_not_sent() -> None:
    assert value(request(row(end_id=7)), "end_id") == 7
    assert "end_id" not in request(row(end_id=50256))


def test_ids_and_lengths_are_always_requested_together_and_scores_where_the_client_asks() -> None:
    both = ["output_ids", "sequence_length"]
    assert engine_outputs(row()) == both
    assert engine_outputs(row(wants_log_probs=True)) == [*both, "output_log_probs"]


@pytest.mark.parametrize(
    ("fields", "end"), [({}, [1, 2, 3, 4]), ({"end_id": 2}, [1, 2]), ({"stop_words": [[2, 3]]}, [1, 2, 3])]
)
def test_an_answer_ends_where_the_row_says(fields: dict[str, Any], end: list[int]) -> None:
    one = row(**fields)
    ids = np.array([[[5, 6, 7, 1, 2, 3, 4, 0, 0]]], dtype=np.int32)
    finish_row(one, {"output_ids": ids, "sequence_length": np.array([[9]])})
    assert one.ids == [5, 6, 7, *end]


def test_what_stands_behind_the_sequence_length_is_no_answer() -> None:
    one = row()
    finish_row(one, {"output_ids": np.array([[[5, 6, 7, 1, 2, 0, 0]]]), "sequence_length": np.array([[5]])})
    assert one.ids == [5, 6, 7, 1, 2]


def test_the_answer_becomes_the_clients_four_tensors() -> None:
    one = row(end_id=2, wants_log_probs=True)
    ids, scores = np.array([[[5, 6, 7, 1, 2, 2, 2]]]), np.array([[[-1.0, -0.5, 0.0, 0.0]]])
    finish_row(one, {"output_ids": ids, "sequence_length": np.array([[7]]), "output_log_probs": scores})
    found = outputs([one])
    assert found["output_ids"].tolist() == [[[5, 6, 7, 1, 2, 2, 2]]]
    assert found["sequence_length"].tolist() == [[5]]
    assert found["cum_log_probs"].tolist() == [[-1.5]]


def test_a_samplers_own_seed_is_the_one_that_it_draws_with() -> None:
    sampler = Sampler(1.0)
    again = Sampler(1.0, seed=sampler.seed)
    logits = np.zeros(1000)
    assert [sampler.draw(logits) for _ in range(5)] == [again.draw(logits) for _ in range(5)]
