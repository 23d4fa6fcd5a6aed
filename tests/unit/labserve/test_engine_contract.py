"""What every engine owes, whatever computes: the tokens of a request depend on nothing but the request.

A greedy token is right if Hugging Face's model, in one pass over the whole text, scores it highest. Any other request
is held against the same engine without company. How each kind of engine is played: engine_kinds.py.
"""

from __future__ import annotations

import functools
import importlib.util
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkout import ROOT
from engine_kinds import DRAFTS, GREEDY, SLOTS, Asked, Held, Inflight, Stepwise, Together, Vllm, alone
from exercise_cases import EXERCISES
from labserve_tiny import random_gpt2
from layer import process_with_vllm
from transformers import AutoModelForCausalLM

from labctl.artifacts import engines, weights
from labctl.learn.exercise import find_exercise
from labctl.workspace import Workspace
from labkit.evidence.near_tie import NEAR
from labsched.features import DRAFT, PROMPT_LOOKUP, Features
from labsched.request import Sampling
from labserve.codegen.batch_decoder import load_batch_decoder
from labserve.gpt2.decoders import CachedDecoder, RecomputingDecoder
from labserve.gpt2.lookup import Lookup
from labserve.gpt2.model import GPT2
from labserve.gpt2.own import OwnFile
from labserve.gpt2.paged import PagedDecoder
from labserve.inflight import openvino_engine, transformers_engine
from labserve.inflight.openvino_engine import OpenVinoEngine
from labserve.params import BadInput

GPT2S = ("cached", "recomputing", "paged", "lookup")
CODEGENS = ("codegen", "codegen-openvino")
VLLM = pytest.param("vllm", marks=[pytest.mark.night, pytest.mark.xdist_group("vllm")])
ENGINES = ("openvino", "transformers", "plain", VLLM)
LLAMA, CODEGEN, VLLM_MODEL = "random:tiny-llama", "shipped:tiny-codegen", "labs/shared/models/tiny-llama"
POISON = 4  # a token whose embedding is no number; OpenVINO's engines have it as any other
SAMPLED = Sampling(sample=True, temperature=0.9, top_k=40, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def make(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """What computes, by its name; each is made once."""
    place, folder = Workspace(ROOT, cache), tmp_path_factory.mktemp("engines")

    @functools.cache
    def poisoned(name: str) -> str:
        """A folder of weights with the token POISON."""
        source = weights.parse_source(name).make(place, print) if ":" in name else small_gpt2(folder / name)
        model = AutoModelForCausalLM.from_pretrained(source)
        with torch.no_grad():
            model.get_input_embeddings().weight[POISON] = float("nan")
        model.save_pretrained(folder / f"poisoned-{source.name}")
        return str(folder / f"poisoned-{source.name}")

    def compiled(name: str) -> tuple[str, str]:
        """The folders of OpenVINO's model and of its weights."""
        engine = engines.request("openvino", name, {"precision": "fp32"}).make(place, print)
        return str(engine), str(weights.parse_source(name).make(place, print))

    def inflight(module: Any, kind: str, held: Held) -> Inflight:
        return Inflight(getattr(module, kind), module, poisoned(LLAMA), poisoned(LLAMA), held)

    def gpt2(decoder: Any, held: Held, *more: Any) -> Stepwise:
        return Stepwise(poisoned("gpt2"), decoder(GPT2(poisoned("gpt2"), precision="fp32"), *more), held)

    def codegen(engine: str, source: str) -> Together:
        return Together(source, load_batch_decoder(engine, "cpu", 1, exact=True))

    able = "sample", "min_length", "repetition_penalty", "presence_penalty"
    kinds: dict[str, Callable[[], Any]] = {
        "openvino": lambda: Inflight(OpenVinoEngine, openvino_engine, *compiled(LLAMA), still_in_openvino, *able),
        "transformers": lambda: inflight(transformers_engine, "TransformersEngine", still_in_transformers),
        "plain": lambda: inflight(plain_module(folder), "PlainEngine", lambda engine: len(engine._sequences)),
        "cached": lambda: gpt2(CachedDecoder, taken_slots, SLOTS),
        "recomputing": lambda: gpt2(RecomputingDecoder, lambda decoder: 0),
        "paged": lambda: gpt2(PagedDecoder, held_blocks, 8 * SLOTS, solution("02f")),
        "lookup": lambda: gpt2(Lookup, taken_slots, SLOTS, solution("06d")),
        "codegen": lambda: codegen(poisoned(CODEGEN), poisoned(CODEGEN)),
        "codegen-openvino": lambda: codegen(*compiled(CODEGEN)),
    }
    with ExitStack() as stack:
        kinds["vllm"] = lambda: Vllm(stack.enter_context(process_with_vllm(cache)), str(ROOT / VLLM_MODEL))
        yield functools.cache(lambda name: kinds[name]())


def small_gpt2(folder: Path) -> Path:
    shape = {"vocab_size": 340, "n_positions": 128, "n_embd": 48, "initializer_range": 0.3}
    return random_gpt2(folder, 7, **shape, tie_word_embeddings=False)


def plain_module(folder: Path) -> Any:
    """The module that docs/develop/writing-an-engine.md adds."""
    path, patch = "src/labserve/inflight/plain_engine.py", ROOT / "docs" / "develop" / "example-engine.patch"
    subprocess.run(["git", "apply", f"--include={path}", str(patch)], cwd=folder, check=True)
    spec = importlib.util.spec_from_file_location("plain", folder / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def solution(id: str) -> OwnFile:
    exercise = find_exercise(EXERCISES, id)
    return OwnFile(exercise.folder / "solution" / next(iter(exercise.manifest.files)))


def taken_slots(decoder: CachedDecoder) -> int:
    return decoder.cache.used


def held_blocks(decoder: PagedDecoder) -> int:
    return sum(decoder._manager.holders.values())


def still_in_openvino(engine: Any) -> int:
    """Its metrics are those of its last step: here of one with a request more."""
    engine.add([5], 1, GREEDY)
    engine.step()
    return int(engine._pipeline.get_metrics().requests) - 1


def still_in_transformers(engine: Any) -> int:
    processor = engine._processor
    assert not processor.scheduler.has_pending_requests()
    return int(processor.cache.num_blocks - processor.cache.get_num_free_blocks())


@pytest.fixture
def engine(request: pytest.FixtureRequest, make: Callable[[str], Any]) -> Any:
    return make(request.param)


def over(*names: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", names, indirect=True)


# -- what is right ----------------------------------------------------------------------------------------------------


@functools.cache
def reference(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def is_greedy(folder: str, one: Asked) -> bool:
    """Whether each of its tokens is the likeliest after those before it, or nearly ties with that."""
    scores = reference(folder)(torch.tensor([one.prompt + one.output])).logits[0, len(one.prompt) - 1 : -1]
    taken = scores.gather(1, torch.tensor(one.output, dtype=torch.long)[:, None])[:, 0]
    return bool((scores.max(-1).values - taken < NEAR).all())


def assert_right(engine: Any, *asked: Asked) -> None:
    others = [one for one in asked if replace(one.sampling, end_id=None) != GREEDY]
    for one, expected in zip(others, alone(engine, others) if others else [], strict=True):
        assert one.output == (expected[: len(one.output)] if one.leaves else expected), one
    for one in asked:
        assert not one.error, one
        if one not in others:
            end = one.sampling.end_id
            assert is_greedy(engine.weights, one) and end not in one.output[:-1], one
            assert one.leaves or len(one.output) == one.limit or one.output[-1:] == [end], one


# -- requests ---------------------------------------------------------------------------------------------------------


def prompt(engine: Any, rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(POISON + 1, reference(engine.weights).config.vocab_size) for _ in range(length)]


def chosen(engine: Any, rng: random.Random, one: Asked, drafted: bool) -> Sampling:
    """How its tokens are chosen: half of the requests are greedy and nothing else.

    With drafts a seed gives the same distribution, not the same answer, and OpenVINO refuses `min_length`.
    """
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        return GREEDY
    if rng.random() < 0.5:  # a token of the answer would end it, but for its least length
        options["end_id"] = rng.choice(alone(engine, [one])[0])
        if "min_length" in engine.can and not drafted:
            options["min_length"] = rng.randint(0, 60)
    for penalty, values in (("repetition_penalty", (0.8, 1.3)), ("presence_penalty", (-1.0, 2.0))):
        if penalty in engine.can and rng.random() < 0.4:
            options[penalty] = rng.choice(values)
    if "sample" in engine.can and not drafted and rng.random() < 0.4:
        options |= {"sample": True, "temperature": 0.8, "top_k": rng.choice([0, 20]), "seed": rng.randint(1, 99)}
    return Sampling(**options)


def mixed(engine: Any, rng: random.Random, drafted: bool) -> list[Asked]:
    """Requests of which many begin alike, some are the same or go on where others end, and some leave.

    One asks a beginning alone, for one token: its last block stays half full, and several that go on from there come
    together.
    """
    size = engine.block
    beginnings = [prompt(engine, rng, int(blocks * size)) for blocks in (1, 1.5, 3, 5)]
    short = rng.choice(beginnings[1:])[: int(rng.choice([0.6, 1.4, 3]) * size)]
    found, together = [Asked(short, 1)], rng.randint(3, 8)
    for number in range(17):
        ids, chance, at = list[int](), rng.random(), together + (rng.randint(0, 20) if number >= 4 else 0)
        if number < 4:
            ids = short + prompt(engine, rng, rng.randint(1, 20))
        elif chance < 0.2:
            ids = rng.choice(found).prompt
        elif chance < 0.35:
            other = rng.choice(found)
            said = alone(engine, [other])[0][: rng.randint(0, 40)]
            ids = other.prompt + said + prompt(engine, rng, rng.randint(1, 10))
        else:
            ids = rng.choice(beginnings)[: int(rng.choice([0.6, 1, 2, 5]) * size)] if rng.random() < 0.8 else []
            ids = ids + prompt(engine, rng, rng.randint(1, 30)) * rng.choice([1, 1, 3])
        leaves = at + rng.randint(1, 12) if rng.random() < 0.25 else None
        one = Asked(ids[: engine.longest], rng.randint(1, engine.most), at, leaves)
        one.sampling = chosen(engine, rng, one, drafted)
        found.append(one)
    return found


# -- the obligations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "seed"),
    [
        *((name, 0) for name in (*ENGINES[:-1], *GPT2S, *CODEGENS)),
        *(pytest.param(name, 1, marks=pytest.mark.night) for name in (*ENGINES[:-1], *GPT2S, *CODEGENS)),
        *(pytest.param("openvino", seed, marks=pytest.mark.night) for seed in range(2, 24)),
        pytest.param("vllm", 0, marks=VLLM.marks),
    ],
    indirect=["engine"],
)
def test_the_tokens_of_a_request_are_the_same_in_any_company(engine: Any, seed: int) -> None:
    """Under any settings. There are more requests than slots, so each slot is used again."""
    rng = random.Random(seed)
    settings = engine.by_chance(rng)
    asked = mixed(engine, rng, drafted="features" in settings and settings["features"].num_assistant_tokens > 0)
    engine.play(asked, **settings)
    assert_right(engine, *asked)
    assert not engine.held


@over(*ENGINES, "cached")
def test_a_prompt_in_pieces_is_a_prompt_at_once(engine: Any) -> None:
    asked = [Asked(prompt(engine, random.Random(n), 2 * engine.piece + 3 + n), 9) for n in range(3)]
    engine.play(asked, **engine.in_pieces)
    assert_right(engine, *asked)


@over(*ENGINES, *GPT2S, *CODEGENS)
@pytest.mark.parametrize("leaves", [1, 4])
def test_a_request_that_leaves_is_over_at_once_and_changes_no_other(engine: Any, leaves: int) -> None:
    asked = [Asked(prompt(engine, random.Random(n), 12 * n + 3), 20) for n in range(SLOTS)]
    asked[1].limit, asked[1].leaves = 60, leaves  # the others end long before
    engine.play(asked)
    assert_right(engine, *asked)
    assert len(asked[1].output) <= leaves and not engine.held


@pytest.mark.parametrize(
    ("engine", "sampling"),
    [
        *((name, GREEDY) for name in ("openvino", "transformers", "plain", "cached", "recomputing", "lookup")),
        pytest.param("vllm", GREEDY, marks=VLLM.marks),
        ("openvino", Sampling(min_length=20)),
        ("openvino", Sampling(repetition_penalty=1.3)),
        ("openvino", Sampling(presence_penalty=2.0)),
        ("openvino", SAMPLED),
    ],
    indirect=["engine"],
)
def test_a_preempted_request_is_computed_again_and_goes_on_where_it_was(engine: Any, sampling: Sampling) -> None:
    """One that could not go on is never preempted (fault 43)."""
    asked = [Asked(prompt(engine, random.Random(n), 2 * engine.block - n), engine.most) for n in range(3)]
    for one, answer in zip(asked, alone(engine, asked), strict=True):
        one.sampling = replace(sampling, end_id=answer[sampling.min_length]) if sampling.min_length else sampling
    assert bool(engine.play(asked, **engine.tight).preempted) == sampling.resumable
    assert_right(engine, *asked)


@over("openvino", VLLM, "paged")
def test_a_beginning_that_is_there_is_not_computed_again_and_changes_no_token(engine: Any) -> None:
    known = prompt(engine, random.Random(43), 3 * engine.block)
    asked = [Asked([*known, 5 + n], 9, at=30 if n else 0) for n in range(3)]
    assert engine.play(asked, **engine.sharing).found == [3 * engine.block] * 2
    assert_right(engine, *asked)


@over("openvino")
@pytest.mark.parametrize("tokens", [16, 40])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_prompt_that_is_given_up_halfway_is_no_beginning_of_another(engine: Any, tokens: int, steps: int) -> None:
    """OpenVINO knows a block by its tokens before they are computed: given up then, it would lie."""
    ids = prompt(engine, random.Random(100 * tokens + steps), 150)
    given_up, beside = Asked(ids, 8, leaves=steps + 1), Asked(ids[:140], 8, at=steps)
    after = Asked(ids, 8, at=steps + 1)
    features = replace(engine.sharing["features"], max_num_tokens=tokens)
    assert engine.play([given_up, beside, after], features=features).found
    assert_right(engine, beside, after)


@over("plain", *GPT2S, "codegen")
def test_numbers_that_are_none_fail_their_request_alone_and_stay_in_no_memory(engine: Any) -> None:
    """Half precision can overflow: what stands behind a short text is multiplied by nothing, and must be a number.

    Not so in transformers, which computes a batch as one masked product: the number reaches everybody.
    """
    asked = [Asked(prompt(engine, random.Random(n), 20 - 2 * n), 6) for n in range(2 * SLOTS)]
    bad = Asked([5, POISON, *asked[0].prompt], 6)
    engine.play([asked[0], bad, *asked[1:]])
    assert_right(engine, *asked)
    assert bad.error or isinstance(engine, Inflight), "where the engine chooses tokens, it does not look"


@over(*ENGINES, *GPT2S, *CODEGENS)
def test_an_end_id_ends_its_request_with_it(engine: Any) -> None:
    one, beside = (Asked(prompt(engine, random.Random(n), 7), 12) for n in range(2))
    (whole,) = alone(engine, [one])
    one.sampling = Sampling(end_id=whole[5])
    engine.play([one, beside])
    assert one.output == whole[: whole.index(whole[5]) + 1]
    assert_right(engine, beside)


@over("openvino", *GPT2S, *CODEGENS)
def test_a_seed_gives_the_same_tokens_in_any_company_and_another_seed_gives_others(engine: Any) -> None:
    ids = prompt(engine, random.Random(0), 9)
    seeded = [Asked(ids, 20, sampling=replace(SAMPLED, seed=seed)) for seed in (11, 12, 11)]
    engine.play([Asked(ids[2:], 20), *seeded])
    assert seeded[0].output == seeded[2].output != seeded[1].output
    assert_right(engine, *seeded)


@over("cached", "paged")
def test_a_sequence_that_there_is_no_room_for_fails_alone(engine: Any) -> None:
    many = [Asked(prompt(engine, random.Random(n), 6 * engine.block), 9) for n in range(2 * SLOTS)]
    engine.play(many, slots=len(many))
    failed = [one for one in many if one.error]
    assert 0 < len(failed) < len(many) and not engine.held
    assert_right(engine, *(one for one in many if one not in failed))


@pytest.mark.parametrize(
    ("engine", "features", "sampling", "name"),
    [
        ("transformers", {}, Sampling(sample=True), "temperature, runtime_top_k, runtime_top_p"),
        ("transformers", {}, Sampling(repetition_penalty=1.2), "repetition_penalty"),
        ("transformers", {}, Sampling(presence_penalty=0.5), "presence_penalty"),
        ("transformers", {}, Sampling(min_length=3, end_id=1), "min_length"),
        ("plain", {}, Sampling(sample=True), "temperature"),
        ("openvino", {"speculation": PROMPT_LOOKUP}, Sampling(min_length=3, end_id=7), "min_length"),
        ("openvino", {"speculation": DRAFT}, Sampling(min_length=3, end_id=7), "min_length"),
    ],
    indirect=["engine"],
)
def test_what_an_engine_cannot_do_is_refused_by_name(
    engine: Any, features: dict[str, Any], sampling: Sampling, name: str
) -> None:
    if features:
        features = {**features, "num_assistant_tokens": DRAFTS, "chunked_context": False, "draft_model": engine.folder}
    with pytest.raises(BadInput) as raised:
        engine.open(64, Features(**features)).add([5, 6], 9, sampling)
    assert raised.value.name == name
