"""A learner's own part of GPT-2's decoding, with the solutions of 02f and 06d. Its tokens: test_engine_contract.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from exercise_cases import EXERCISES

from labctl.learn.exercise import find_exercise
from labserve.gpt2.decoders import step
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


def test_a_step_with_blocks_says_what_was_found_held_and_copied(model: GPT2) -> None:
    decoder, batch = (
        PagedDecoder(model, 16, solution("02f")),
        [begun(model, LONG, temperature=1.0, seed=n) for n in range(3)],
    )
    first = decoder.step(batch)
    length = batch[0].prompt
    assert length % SIZE  # the last block is written by each of them
    said = {"kv_blocks": 16, "kv_blocks_used": -(-length // SIZE), "cached": [0, length, length], "copied": 0}
    assert said.items() <= first.items() and first["tokens"] == [length, 0, 0]
    assert decoder.step(batch)["copied"] == 2


def test_a_table_that_does_not_fit_is_refused_with_the_file(model: GPT2, tmp_path: Path) -> None:
    text = (find_exercise(EXERCISES, "02d").folder / "starter" / "blocks.py").read_text(encoding="utf-8")
    path = tmp_path / "blocks.py"
    path.write_text(text.replace("return self.tables[sequence]", "return [0]"), encoding="utf-8")
    (said,) = step(PagedDecoder(model, 16, OwnFile(path)), [begun(model, LONG)])
    assert isinstance(said, Refusal) and str(said).startswith("blocks.py: table(1) is [0]")


def test_drafts_save_steps(model: GPT2) -> None:
    lookup, steps = Lookup(model, 8, solution("06d")), 0
    batch = [begun(model, prompt, max_tokens=120) for prompt in ("Once upon a time", "Paris is a quiet")]
    while left := [one for one in batch if not one.finished]:
        assert max(lookup.tokens(left)) <= max(len(one.ids) - one.cached for one in left) + MOST
        lookup.step(left)
        steps += 1
    assert steps < 110


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
    lookup, request = Lookup(model, 8, OwnFile(path)), begun(model, LONG)
    for _ in range(2):
        lookup.tokens([request])
        fields = lookup.step([request])
    with pytest.raises(Refusal, match=said):
        raise request.error or AssertionError(request.piece)
    assert request.finished and (fields["guessed"], fields["accepted"]) == ([0], [0])


@pytest.mark.parametrize("ignored", [False, True])
def test_the_end_token_ends_a_text_unless_it_is_ignored(model: GPT2, ignored: bool) -> None:
    made = begun(model, LONG, ignore_eos=ignored)
    made.accept(model.end_id)
    assert made.finished is not ignored


def test_without_a_file_beside_it_a_model_has_none(tmp_path: Path) -> None:
    args = {"model_repository": str(tmp_path), "model_version": "1"}
    assert file_beside(args, "blocks.py") is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "blocks.py").write_text("Blocks = None\n", encoding="utf-8")
    own = file_beside(args, "blocks.py")
    assert own is not None
    with pytest.raises(ValueError, match=r"blocks\.py: it needs `Blocks`"):
        own.find("Blocks")
