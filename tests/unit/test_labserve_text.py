"""Streamed pieces join to exactly what decode gives, also inside a character."""

import random
import time
from typing import Any

import labserve_tiny
import pytest

from labsched.steplog import StepLog
from labserve.text.detok import Detokenizer
from labserve.text.prompts import open_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_tokenizer(str(labserve_tiny.make(tmp_path_factory.mktemp("tiny"))))


def pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.add(token, last=place == len(ids) - 1) for place, token in enumerate(ids)]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_tokens_join_to_what_decode_gives(tokenizer: Any, seed: int) -> None:
    chance = random.Random(seed)
    ids = [chance.randrange(0, 340) for _ in range(chance.randint(1, 60))]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_real_text_is_never_late_by_more_than_one_character(tokenizer: Any) -> None:
    written = "naïve café \N{GRINNING FACE} in Seoul, 서울"
    ids, shown = tokenizer.encode(written).ids, ""
    for place, piece in enumerate(pieces(tokenizer, ids)):
        shown += piece
        assert len(
            tokenizer.decode(ids[: place + 1], skip_special_tokens=False).rstrip("\N{REPLACEMENT CHARACTER}")
        ) == len(shown)
    assert shown == written


@pytest.mark.parametrize("folder", ["", "/proc/no/such/folder"])
def test_without_a_run_folder_nothing_is_logged_and_nothing_fails(folder: Any) -> None:
    log = StepLog(folder, "some-model", "0_0")
    log.write(time.monotonic(), ["1"])
    log.close()
