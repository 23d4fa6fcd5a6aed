"""Answers by a JSON schema: which tokens a mask allows, and what comes of it over many seeds and in any company."""

from __future__ import annotations

import builtins
import contextlib
import json
import threading
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from checkout import ROOT
from tokenizers import Tokenizer
from waiting import eventually

from labdoor.errors import of_triton
from labserve.gpt2.decoders import CachedDecoder, Decoder, RecomputingDecoder, step
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence, new_sequence
from labserve.params import BadInput
from labserve.text.grammar import INSTALL, Grammar, Grammars
from labserve.text.prompts import open_tokenizer
from labserve.text.sampling import Sampler, choose
from labserve.text.vocabulary import spelling

FOLDER = str(ROOT / "labs" / "shared" / "models" / "tiny-gpt2")
SLOTS = 4
END = 0
#: A schema, and every text that follows it.
FINITE: list[tuple[dict[str, Any], list[str]]] = [
    ({"type": "boolean"}, ["true", "false"]),
    ({"type": "array", "items": {"const": None}, "maxItems": 2}, ["[]", "[null]", "[null,null]"]),
    (
        {
            "type": "object",
            "properties": {"city": {"enum": ["Seoul", "São"]}, "old": {"type": "boolean"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        [
            json.dumps(value, separators=(",", ":"), ensure_ascii=False)
            for city in ("Seoul", "São")
            for value in ({"city": city}, {"city": city, "old": True}, {"city": city, "old": False})
        ],
    ),
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "height": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    },
    "required": ["name", "age", "height"],
    "additionalProperties": False,
}
SCHEMAS = [PERSON, {"type": "object"}, {"type": "string", "pattern": "^[a-f]{2}-[0-9]{3}$"}, {"type": "integer"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_tokenizer(FOLDER)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2(FOLDER)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer.get_vocab_size(), END)


@pytest.fixture(params=["cached", "recomputing"])
def decoder(request: Any, model: GPT2) -> Decoder:
    return CachedDecoder(model, SLOTS) if request.param == "cached" else RecomputingDecoder(model)


def parameter(schema: Any) -> str:
    return json.dumps({"json": schema})


def at(grammars: Grammars, schema: Any, tokens: list[int]) -> Grammar:
    """The grammar after these tokens."""
    grammar = grammars.open(parameter(schema))
    for token in tokens:
        grammar.accept(token)
    return grammar


@pytest.mark.parametrize(("schema", "texts"), FINITE)
def test_the_mask_allows_exactly_the_tokens_that_lead_to_a_valid_text(
    grammars: Grammars, tokenizer: Tokenizer, schema: Any, texts: list[str]
) -> None:
    words = {id: raw for id, raw in spelling(tokenizer).items() if id != END}
    whole = [text.encode() for text in texts]
    found: set[bytes] = set()
    free: list[bool] = []

    def walk(tokens: list[int], prefix: bytes) -> None:
        if prefix in found:
            return
        found.add(prefix)
        right = {id for id, raw in words.items() if any(text.startswith(prefix + raw) for text in whole)}
        right |= {END} if prefix in whole else set()
        allowed = set(np.flatnonzero(at(grammars, schema, tokens).allowed()).tolist())
        # Where only one text can follow, its own spelling is left; otherwise every token that leads on.
        following = {text[len(prefix) : len(prefix) + 1] for text in whole if text.startswith(prefix)}
        forced = len(following) == 1 and following != {b""}
        assert (allowed and allowed <= right) if forced else allowed == right, prefix
        free.append(len(following) > 1)
        for id in right - {END}:
            walk([*tokens, id], prefix + words[id])

    walk([], b"")
    assert found > {*whole} and any(free), "every text was reached, in more than one step"


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_an_answer_that_ends_by_itself_follows_its_schema_over_seeds(
    grammars: Grammars, tokenizer: Tokenizer, schema: Any
) -> None:
    ended = 0
    for seed in range(40):
        grammar, sampler, random = at(grammars, schema, []), Sampler(1.0, seed=seed), np.random.default_rng(seed)
        tokens: list[int] = []
        while len(tokens) < 400:
            (token,) = choose(random.normal(0, 2, (1, tokenizer.get_vocab_size())), [sampler], [grammar.mask])
            assert isinstance(token, int)
            tokens.append(token)
            if grammar.accept(token):
                ended += 1
                text = tokenizer.decode([id for id in tokens if id != END], skip_special_tokens=False)
                jsonschema.validate(json.loads(text), schema)
                break
    assert ended >= 20


def sequence(tokenizer: Tokenizer, grammars: Grammars, prompt: str, schema: Any = None, **more: Any) -> Sequence:
    asked = {"max_tokens": 40, **more, **({"structured_outputs": parameter(schema)} if schema else {})}
    return new_sequence(prompt.encode(), json.dumps(asked), tokenizer, 256, END, grammars)


def run(decoder: Decoder, batch: list[Sequence], release_at: int = 0) -> list[str]:
    """The answers of a batch, step by step; before the step ``release_at`` all lose their slots."""
    texts, steps = dict.fromkeys(map(id, batch), ""), 0
    while running := [one for one in batch if not one.finished]:
        steps += 1
        for one in running if steps == release_at else ():
            decoder.release(one)
        for one, text in zip(running, step(decoder, running), strict=True):
            assert isinstance(text, str), text
            texts[id(one)] += text
    for one in batch:
        decoder.release(one)
    return [texts[id(one)] for one in batch]


def test_the_company_of_a_grammar_changes_no_token_of_the_others(
    decoder: Decoder, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    def others() -> list[Sequence]:
        return [
            sequence(tokenizer, grammars, "I have lived", max_tokens=20),
            sequence(tokenizer, grammars, "The house", max_tokens=20, seed=7),
        ]

    def masked() -> list[Sequence]:
        return [sequence(tokenizer, grammars, "I have", PERSON), sequence(tokenizer, grammars, "A", PERSON, seed=3)]

    alone = run(decoder, others())
    together = run(decoder, [*others(), *masked()])
    assert together[:2] == alone
    assert together[2:] == run(decoder, masked()), "and the others change none of its tokens"


@pytest.mark.parametrize("release_at", [2, 5])
def test_an_answer_goes_on_by_its_schema_after_it_lost_its_slot(
    decoder: Decoder, tokenizer: Tokenizer, grammars: Grammars, release_at: int
) -> None:
    def batch() -> list[Sequence]:
        return [sequence(tokenizer, grammars, "The", PERSON, seed=seed, max_tokens=120) for seed in (1, 2)]

    texts = run(decoder, batch(), release_at)
    assert texts == run(decoder, batch())
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)


def test_an_answer_that_is_cut_is_the_beginning_of_the_whole_one(
    decoder: Decoder, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    whole, cut = (sequence(tokenizer, grammars, "The", PERSON, seed=1, max_tokens=most) for most in (120, 9))
    text, beginning = run(decoder, [whole, cut])
    assert (whole.why, cut.why) == ("stop", "length")
    assert text.startswith(beginning) and len(beginning) < len(text)


def test_log_probabilities_are_the_models_own_under_a_mask(
    decoder: Decoder, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    batch = [sequence(tokenizer, grammars, "The", schema, logprobs=3) for schema in (None, PERSON)]
    step(decoder, batch)
    free, masked = ([id for id, p in one.log_probs.items() if p.rank <= 3] for one in batch)
    assert sorted(free) == sorted(masked), "the same rivals"
    assert batch[1].log_probs[batch[1].ids[-1]].rank > 1, "the mask chose another token than the likeliest"


def test_the_end_token_has_no_text_in_an_answer_by_a_schema(tokenizer: Tokenizer, grammars: Grammars) -> None:
    one = sequence(tokenizer, grammars, "The", {"type": "integer"}, ignore_eos=True)
    texts = [one.accept(tokenizer.encode("7").ids[0]), one.accept(END)]
    assert texts == ["7", ""]
    assert (one.finished, one.why) == (True, "stop")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("{", "it is not JSON"),
        ("[" * 60_000, "it is not JSON"),
        (json.dumps({"json": {"enum": ["x" * 70_000]}}), "at most 65,536 characters"),
        ('{"regex": "a"}', 'expected {"json": SCHEMA}'),
        ('{"json": true}', "a JSON schema that is an object"),
        ('{"json": {"type": "foo"}}', "Invalid type: foo"),
        ('{"json": {"not": {}}}', 'Unimplemented keys: ["not"]'),
        ('{"json": {"$ref": "#"}}', "no text follows this schema"),
        ('{"json": {"type": "integer", "minimum": 2, "maximum": 1}}', "minimum (2) is greater than maximum (1)"),
    ],
    ids=range(9),
)
def test_a_schema_that_cannot_be_followed_is_refused_by_name(grammars: Grammars, raw: str, why: str) -> None:
    with pytest.raises(BadInput, match=r"^structured_outputs: ") as caught:
        grammar = grammars.open(raw)
        grammar.accept(int(np.flatnonzero(grammar.allowed())[0]))  # its limits are also those of each step
    assert why in str(caught.value)


def test_a_grammar_that_fails_in_a_step_ends_its_own_sequence_alone(
    decoder: Decoder, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    endless = {"$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}}}
    failing = sequence(tokenizer, grammars, "A", endless | {"$ref": "#/$defs/n"})
    other = sequence(tokenizer, grammars, "The house")
    error, text = step(decoder, [failing, other])
    assert isinstance(error, BadInput) and "Too many items" in str(error)
    assert (failing.why, other.finished) == ("failed", False)
    assert isinstance(text, str)


def test_a_schema_that_takes_too_long_is_refused_and_another_while_its_thread_is_busy_and_then_taken(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Grammars(tokenizer, tokenizer.get_vocab_size(), END)
    free, simple = threading.Event(), json.dumps({"json": {"type": "boolean"}})
    load = made._load()

    def slow(schema: str) -> Grammar:
        free.wait(60)
        return load(schema)

    monkeypatch.setattr("labserve.text.grammar.COMPILED_S", 0.1)
    made._make = slow
    for why, status in (("too complex", 400), ("another schema keeps the server busy", 429)):
        with pytest.raises(BadInput, match=why) as caught:
            made.open(simple)
        assert caught.value.name == "structured_outputs"
        assert of_triton(str(caught.value), None).status == status, "what the OpenAI API says of it"
    free.set()
    monkeypatch.undo()
    eventually(lambda: made._busy is not None and not made._busy.is_alive())
    assert made.open(simple).allowed().any()


MEETING = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{count}}}"} for count in range(5, 18)]


@pytest.mark.parametrize(
    "schema", [{"allOf": MEETING}, {"type": "integer", "multipleOf": 999_983}, {"pattern": "^(a{1000}){1000}$"}]
)
def test_a_thousand_characters_of_schema_hold_nobody(tokenizer: Tokenizer, schema: dict[str, Any]) -> None:
    """Of patterns that must all hold llguidance looks for a text that they share, for ten seconds or more."""
    raw = parameter(schema)
    began = time.monotonic()
    assert len(raw) < 1000
    with contextlib.suppress(BadInput):
        Grammars(tokenizer, tokenizer.get_vocab_size(), END).open(raw)
    assert time.monotonic() - began < 9, "less than it takes to look for it"


def test_a_server_without_the_package_names_the_command_that_installs_it(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput) as caught:
        Grammars(tokenizer, 1216, END).open(parameter({"type": "boolean"}))
    assert INSTALL in str(caught.value)


def test_what_its_masks_took_is_told_once(grammars: Grammars) -> None:
    grammar = at(grammars, {"type": "object"}, [])
    assert grammar.take_seconds() == 0.0, "the first mask belongs to the request's arrival"
    grammar.accept(int(np.flatnonzero(grammar.allowed())[0]))
    grammar.allowed()
    assert grammar.take_seconds() > 0.0 == grammar.take_seconds()
