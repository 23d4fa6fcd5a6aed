"""A learner's own part of GPT-2's decoding, with the solutions of 02d and 06d: the tokens stay the plain ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from exercise_cases import EXERCISES

from labctl.learn.exercise import find_exercise
from labserve.gpt2.decoders import CachedDecoder, Decoder, step
from labserve.gpt2.lookup import MOST, Lookup
from labserve.gpt2.model import GPT2
from labserve.gpt2.own import OwnFile, file_beside
from labserve.gpt2.paged import SIZE, PagedDecoder
from labserve.gpt2.sequences import Sequence, new_sequence
from labserve.params import Refusal
from labserve.text.prompts import open_tokenizer

SHIPPED = str(ROOT / "labs" / "shared" / "models" / "tiny-gpt2")
TOKENIZER = open_tokenizer(SHIPPED)
LONG = "Once upon a time there was a small horse that lived near the forest. The horse plays every Sunday in the dark"


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2(SHIPPED, precision="fp32")


def solution(id: str) -> OwnFile:
    exercise = find_exercise(EXERCISES, id)
    return OwnFile(exercise.folder / "solution" / next(iter(exercise.manifest.files)))


def begun(model: GPT2, prompt: str, **parameters: Any) -> Sequence:
    asked = json.dumps({"max_tokens": 24, "ignore_eos": True, **parameters})
    made = new_sequence(prompt.encode(), asked, TOKENIZER, model.context, model.end_id)
    made.name = f"{prompt} {parameters}"
    return made


def finish(decoder: Decoder, *batch: Sequence) -> list[list[int]]:
    while left := [one for one in batch if not one.finished]:
        assert not [text for text in step(decoder, left) if isinstance(text, Exception)]
    for one in batch:
        decoder.release(one)
    return [one.ids for one in batch]


def samples(model: GPT2) -> list[Sequence]:
    """Three of one prompt that go on differently, and one beside them."""
    return [begun(model, LONG, temperature=1.0, seed=n) for n in range(3)] + [begun(model, "The fox")]


def test_blocks_give_the_tokens_of_slots_also_to_forks_and_when_blocks_are_taken_again(model: GPT2) -> None:
    plain = finish(CachedDecoder(model, 8), *samples(model))
    decoder = PagedDecoder(model, 16, solution("02d"))
    assert finish(decoder, *samples(model)) == plain
    finish(decoder, begun(model, "In winter the " + LONG[:60]), begun(model, "Paris is a quiet"))
    assert finish(decoder, *samples(model)) == plain


def test_a_step_with_blocks_says_what_was_found_held_and_copied(model: GPT2) -> None:
    decoder, batch = PagedDecoder(model, 16, solution("02d")), samples(model)[:3]
    step(decoder, batch)
    length = batch[0].prompt
    assert length % SIZE  # the last block is written by each of them
    first = decoder.observed(batch)
    assert first == {"kv_blocks": 16, "kv_blocks_used": -(-length // SIZE), "cached": [0, length, length], "copied": 0}
    step(decoder, batch)
    assert decoder.observed(batch)["copied"] == 2


def test_a_table_that_does_not_fit_is_refused_with_the_file(model: GPT2, tmp_path: Path) -> None:
    text = (find_exercise(EXERCISES, "02d").folder / "starter" / "blocks.py").read_text(encoding="utf-8")
    path = tmp_path / "blocks.py"
    path.write_text(text.replace("return self.tables[sequence]", "return [0]"), encoding="utf-8")
    (said,) = step(PagedDecoder(model, 16, OwnFile(path)), [begun(model, LONG)])
    assert isinstance(said, Refusal) and str(said).startswith("blocks.py: table(1) is [0]")


def test_drafts_save_steps_and_change_no_token(model: GPT2) -> None:
    prompts = ("Once upon a time", "Paris is a quiet")
    (plain,) = ([*finish(CachedDecoder(model, 8), *(begun(model, p, max_tokens=120) for p in prompts))],)
    decoder = CachedDecoder(model, 8)
    lookup, batch, steps = Lookup(decoder, solution("06d")), [begun(model, p, max_tokens=120) for p in prompts], 0
    while left := [one for one in batch if not one.finished]:
        assert max(lookup.propose(left)) <= MOST
        lookup.step(left)
        steps += 1
    assert [one.ids for one in batch] == plain
    assert steps < 110


def test_a_sampled_request_is_left_alone_beside_drafts(model: GPT2) -> None:
    plain = finish(CachedDecoder(model, 8), begun(model, LONG, temperature=1.0, seed=7))
    lookup = Lookup(CachedDecoder(model, 8), solution("06d"))
    sampled, greedy = begun(model, LONG, temperature=1.0, seed=7), begun(model, LONG, max_tokens=60)
    while left := [one for one in (sampled, greedy) if not one.finished]:
        assert lookup.propose(left)[left.index(sampled)] == 0 if sampled in left else True
        lookup.step(left)
    assert [sampled.ids] == plain


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [1] * (most + 1)", r"lookup.py: propose returned 5 draft tokens, of at most 4"),
        ("return [10**6]", r"lookup.py: propose returned \[1000000\]"),
        ("return nothing", r"lookup.py, line 2: NameError"),
    ],
)
def test_a_draft_that_cannot_be_used_ends_its_request_with_the_reason(
    model: GPT2, tmp_path: Path, body: str, said: str
) -> None:
    path = tmp_path / "lookup.py"
    path.write_text(
        f"def propose(ids, most):\n    {body}\ndef accept(draft, chosen):\n    return 0\n", encoding="utf-8"
    )
    lookup, request = Lookup(CachedDecoder(model, 8), OwnFile(path)), begun(model, LONG)
    lookup.propose([request])
    lookup.step([request])
    lookup.propose([request])
    (answer,) = lookup.step([request])
    with pytest.raises(Refusal, match=said):
        raise answer if isinstance(answer, Exception) else AssertionError(answer)
    assert request.finished and lookup.observed([request]) == {"guessed": [0], "accepted": [0]}


def test_without_a_file_beside_it_a_model_has_none(tmp_path: Path) -> None:
    args = {"model_repository": str(tmp_path), "model_version": "1"}
    assert file_beside(args, "blocks.py") is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "blocks.py").write_text("Blocks = None\n", encoding="utf-8")
    own = file_beside(args, "blocks.py")
    assert own is not None
    with pytest.raises(ValueError, match=r"blocks\.py: it needs `Blocks`"):
        own.find("Blocks")
