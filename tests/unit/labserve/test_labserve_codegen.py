"""The CodeGen generator: what a request may say, how its tokens are chosen, and the model for a builder.

What temperature, top_k and top_p mean: test_sampling_everywhere.py. Its batches: test_engine_contract.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from transformers import AutoModelForCausalLM

from labserve.codegen.as_gptj import convert, split
from labserve.codegen.request import TextRow, advance, outputs, parse_codegen_request
from labserve.model_shape import ModelShape
from labserve.params import BadInput

CODEGEN = ROOT / "labs" / "shared" / "models" / "tiny-codegen"
SHAPE = ModelShape(vocabulary=100, context=64, token_values=8, end_id=0)
LOGITS = np.log(np.array([[0.05, 0.5, 0.3, 0.15]], dtype=np.float32))  # of the tokens 0 to 3


def ask(**inputs: Any) -> list[TextRow]:
    given = {"input_ids": [[1, 2, 3]], "input_lengths": [[3]], "request_output_len": [[4]], **inputs}
    return parse_codegen_request(lambda name: np.array(given[name]) if name in given else None, SHAPE)


def words(*several: list[int]) -> list[list[list[int]]]:
    ids = [i for word in several for i in word]
    ends = [sum(map(len, several[: n + 1])) for n in range(len(several))]
    return [[ids, ends + [-1] * (len(ids) - len(ends))]]


def next_token(**inputs: Any) -> int:
    (row,) = ask(**inputs)
    advance([row], LOGITS)
    return row.ids[-1]


def test_without_wishes_the_answer_is_greedy_and_ends_with_the_models_own_end() -> None:
    (row,) = ask()
    assert (row.sampler.temperature, row.limit, row.end_id) == (0.0, 4, 0)


def test_rows_of_different_lengths_are_read_by_their_lengths() -> None:
    rows = ask(input_ids=[[1, 2, 3], [4, 9, 9]], input_lengths=[[3], [1]], request_output_len=[[2], [5]])
    assert [(row.ids, row.limit) for row in rows] == [([1, 2, 3], 2), ([4], 5)]


@pytest.mark.parametrize(
    "neutral",
    [
        {"repetition_penalty": [[1.0]]},
        {"repetition_penalty": [[0.0]]},
        {"len_penalty": [[-1.0]], "beam_search_diversity_rate": [[0.5]], "beam_width": [[1]]},
        {"random_seed": [[7]]},
        {"start_id": [[220]], "end_id": [[50256]]},
    ],
)
def test_neutral_values_change_nothing(neutral: dict[str, Any]) -> None:
    (row,) = ask(**neutral)
    assert row.plain
    assert next_token(**neutral) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_width", [[2]]),
        ("beam_width", [[0]]),
        ("request_output_len", [[0]]),
        ("request_output_len", [[62]]),
        ("request_output_len", [[4, 4]]),
        ("input_lengths", [[0]]),
        ("input_lengths", [[1, 1]]),
        ("input_ids", [[1, 100, 2]]),
        ("input_ids", [[1] * 64]),
        ("repetition_penalty", [[-1.0]]),
        ("bad_words_list", [[1, 2]]),
        ("stop_words_list", [[[1]], [[1]]]),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(name: str, value: Any) -> None:
    more = {"input_lengths": [[64]]} if name == "input_ids" else {}
    with pytest.raises(BadInput, match=f"^{name}: "):
        ask(**{**more, name: value})


def test_a_bad_word_of_one_token_is_not_said_and_the_next_best_is() -> None:
    assert next_token(bad_words_list=words([1])) == 2
    assert next_token(bad_words_list=words([1], [2])) == 3


def test_a_bad_word_of_several_tokens_is_only_not_completed() -> None:
    assert next_token(bad_words_list=words([9, 1])) == 1
    assert next_token(bad_words_list=words([3, 1])) == 2  # the prompt ends with 3


def test_when_every_token_is_forbidden_the_batch_still_goes_on() -> None:
    assert next_token(bad_words_list=words([0], [1], [2], [3]), temperature=[[0.5]]) in range(4)


def test_words_outside_the_vocabulary_forbid_nothing() -> None:
    assert next_token(bad_words_list=words([50256])) == 1


def test_a_repetition_penalty_makes_what_was_said_less_likely() -> None:
    assert next_token(input_ids=[[1, 1, 1]], repetition_penalty=[[5.0]]) == 2


def test_a_stop_word_ends_the_answer_with_it_and_one_of_the_prompt_does_not() -> None:
    (row,) = ask(stop_words_list=words([3], [1, 1]))
    assert advance([row], LOGITS) == [0]
    assert advance([row], LOGITS) == []
    assert row.ids[row.prompt :] == [1, 1]


def test_an_end_id_ends_the_answer_and_one_outside_the_vocabulary_never_does() -> None:
    ending, endless = ask(end_id=[[1]])[0], ask(end_id=[[50256]])[0]
    assert advance([ending, endless], LOGITS.repeat(2, 0)) == [1]


def test_the_answer_is_prompt_and_continuation_filled_up_with_the_end_id() -> None:
    rows = ask(
        input_ids=[[5, 6], [7, 8]],
        input_lengths=[[2], [1]],
        request_output_len=[[1], [3]],
        end_id=[[1], [50256]],
        is_return_log_probs=[[True], [False]],
    )
    alive = [0, 1]
    while alive:
        alive = [alive[place] for place in advance([rows[place] for place in alive], LOGITS.repeat(len(alive), 0))]
    found = outputs(rows)
    assert found["output_ids"].tolist() == [[[5, 6, 1, 1]], [[7, 1, 1, 1]]]
    assert found["sequence_length"].tolist() == [[3], [4]]
    assert {name: (array.dtype.name, array.shape) for name, array in found.items()} == {
        "output_ids": ("uint32", (2, 1, 4)),
        "sequence_length": ("uint32", (2, 1)),
        "cum_log_probs": ("float32", (2, 1)),
        "output_log_probs": ("float32", (2, 1, 3)),
    }


def test_log_probabilities_are_the_models_own_and_add_up() -> None:
    (row,) = ask(is_return_log_probs=[[True]], temperature=[[0.3]], random_seed=[[1]], request_output_len=[[2]])
    while advance([row], LOGITS):
        pass
    found = outputs([row])
    expected = [float(LOGITS[0, token]) for token in row.ids[row.prompt :]]
    assert found["output_log_probs"][0, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert found["cum_log_probs"][0, 0] == pytest.approx(sum(expected), abs=1e-5)


# -- CodeGen in GPT-J's order, so that a builder that knows GPT-J builds the same model ---


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gptj")
    convert(CODEGEN, folder)
    return folder


def logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found


def test_the_logits_are_the_same(converted: Path) -> None:
    assert json.loads((converted / "config.json").read_text())["architectures"] == ["GPTJForCausalLM"]
    ids = torch.randint(1, 800, (2, 40), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(logits(converted, ids), logits(CODEGEN, ids), rtol=0, atol=1e-5)


def test_the_tokenizer_comes_along_for_calibration(converted: Path) -> None:
    assert (converted / "tokenizer.json").read_bytes() == (CODEGEN / "tokenizer.json").read_bytes()


def test_what_is_gptj_already_stays_as_it_is(converted: Path, tmp_path: Path) -> None:
    convert(converted, tmp_path)
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(logits(tmp_path, ids), logits(converted, ids), rtol=0, atol=0)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither CodeGen nor GPT-J, but gpt2"):
        convert(CODEGEN.with_name("tiny-gpt2"), tmp_path)


def test_each_accelerators_share_holds_queries_values_and_keys_in_this_order() -> None:
    rows = torch.arange(12 * 4).reshape(12, 4)  # four shares of three rows, one for each
    parts = split(rows)
    assert [parts[name][:, 0].tolist() for name in ("q_proj", "v_proj", "k_proj")] == [
        [0, 12, 24, 36],
        [4, 16, 28, 40],
        [8, 20, 32, 44],
    ]
