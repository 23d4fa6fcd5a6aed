"""Keys and values outside of the slots: what is put back is what was computed, and nothing else is found."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from labserve_tiny import random_gpt2, sequence

from labkit.client.router import POLICIES, Router, score_each
from labserve.gpt2.decoders import CachedDecoder
from labserve.gpt2.kept import FETCHED_S, SIZE, Desk, Kept, put_in_slot, take_from_slot
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence
from labserve.params import BadInput
from labserve.text.sampling import Sampler

PROMPT = [(7 * n) % 100 for n in range(50)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GPT2:
    shape = {"vocab_size": 100, "n_positions": 96, "n_embd": 64, "initializer_range": 0.2}
    return GPT2(str(random_gpt2(tmp_path_factory.mktemp("kept"), 3, **shape)), precision="fp32")


def finish(decoder: CachedDecoder, *batch: Sequence) -> list[list[int]]:
    """All tokens of each, computed together."""
    while left := [one for one in batch if not one.finished]:
        decoder.step(left)
    return [one.ids for one in batch]


@pytest.mark.parametrize("found", [SIZE, 2 * SIZE, 3 * SIZE])
def test_a_prompt_that_begins_with_kept_blocks_is_continued_as_if_it_were_computed_whole(
    model: GPT2, found: int
) -> None:
    decoder = CachedDecoder(model, 3)
    kept = Kept(decoder.cache, 8)
    first = sequence(PROMPT)
    (whole,) = finish(decoder, first)
    assert first.slot is not None
    kept.keep(PROMPT[:found], first.slot)
    decoder.release(first)
    again, beside = sequence(PROMPT), sequence(PROMPT[5:20])
    again.slot = decoder.cache.take()
    assert again.slot is not None and kept.find(PROMPT) == found
    kept.load(PROMPT[:found], again.slot)
    again.cached = found
    assert finish(decoder, again, beside)[0] == whole


def test_whole_blocks_are_found_and_never_the_last_token(model: GPT2) -> None:
    decoder = CachedDecoder(model, 1)
    kept = Kept(decoder.cache, 8)
    kept.keep(PROMPT, 0)
    assert [kept.find(PROMPT[:count]) for count in (15, 16, 17, 33, 48, 50)] == [0, 0, 16, 32, 32, 48]
    assert kept.find([*PROMPT[:20], 1, *PROMPT[20:]]) == 16


def test_the_block_that_was_used_longest_ago_goes_first(model: GPT2) -> None:
    decoder = CachedDecoder(model, 1)
    kept = Kept(decoder.cache, 2)
    one, two, three = ([n] * (SIZE + 1) for n in (1, 2, 3))
    kept.keep(one, 0)
    kept.keep(two, 0)
    kept.load(one[:SIZE], 0)
    kept.keep(three, 0)
    assert [kept.find(ids) for ids in (one, two, three)] == [SIZE, 0, SIZE]
    assert len(kept) == 2


@pytest.mark.parametrize("sampler", [None, {"temperature": 1.0, "seed": 5}])
def test_a_sequence_that_is_handed_over_goes_on_with_the_same_tokens(
    model: GPT2, tmp_path: Path, sampler: dict[str, Any] | None
) -> None:
    here, there, desk = CachedDecoder(model, 2), CachedDecoder(model, 2), Desk(str(tmp_path))
    (whole,) = finish(here, sequence(PROMPT, sampler=Sampler(**(sampler or {}))))
    first = sequence(PROMPT, sampler=Sampler(**(sampler or {})))
    here.step([first])
    assert first.slot is not None
    name = desk.hand_over(first.ids, take_from_slot(here.cache, first.slot, slice(first.cached)))
    ids, kv = desk.fetch(name)
    rest = sequence(PROMPT, sampler=Sampler(**(sampler or {})))
    rest.sampler.skip()
    rest.accept(ids[-1])
    rest.slot, rest.cached = there.cache.take(), len(ids) - 1
    assert rest.slot is not None
    put_in_slot(there.cache, rest.slot, 0, kv)
    assert finish(there, rest)[0] == whole
    assert kv.nbytes == 2 * model.layers * model.width * 4 * len(PROMPT)


def test_what_is_handed_over_is_fetched_once(model: GPT2, tmp_path: Path) -> None:
    desk, decoder = Desk(str(tmp_path)), CachedDecoder(model, 1)
    name = desk.hand_over(PROMPT, take_from_slot(decoder.cache, 0, slice(49)))
    desk.fetch(name)
    with pytest.raises(BadInput, match="handed_over: nothing of that name is there"):
        desk.fetch(name)


@pytest.mark.parametrize("name", ["", "..", "../steps", "a" * 31, "A" * 32, "0" * 32, "0" * 31 + "\n"])
def test_only_names_that_were_given_out_are_fetched(tmp_path: Path, name: str) -> None:
    (tmp_path / "steps").write_text("{}")
    with pytest.raises(BadInput, match="handed_over"):
        Desk(str(tmp_path)).fetch(name)
    assert (tmp_path / "steps").exists()


def test_what_nobody_has_fetched_is_removed(model: GPT2, tmp_path: Path) -> None:
    desk, decoder = Desk(str(tmp_path)), CachedDecoder(model, 1)
    old = desk.hand_over(PROMPT, take_from_slot(decoder.cache, 0, slice(49)))
    path = tmp_path / "handed-over" / old
    long_ago = path.stat().st_mtime - FETCHED_S - 1
    os.utime(path, (long_ago, long_ago))
    new = desk.hand_over(PROMPT, take_from_slot(decoder.cache, 0, slice(49)))
    assert [left.name for left in path.parent.iterdir()] == [new]


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=20),
    st.sampled_from(sorted(POLICIES)),
)
def test_a_router_remembers_exactly_what_its_servers_keep(prompts: list[list[int]], policy: str) -> None:
    class NoCache:
        def __getattr__(self, name: str) -> Any:
            return torch.zeros(1, 1, 1, 96, 1)

    cache: Any = NoCache()
    servers = {name: Kept(cache, 6) for name in ("1", "2")}
    router = Router(list(servers), score_each(POLICIES[policy]), 6)
    for blocks in prompts:
        ids = [token for block in blocks for token in [block] * SIZE] + [9]
        decision = router.choose(ids, session=str(blocks[0]))
        assert {name: one.cached for name, one in decision.candidates.items()} == {
            name: kept.find(ids) for name, kept in servers.items()
        }
        chosen = servers[decision.replica]
        chosen.load(ids[: chosen.find(ids)], 0)
        chosen.keep(ids, 0)
        router.answered(decision, ids)
