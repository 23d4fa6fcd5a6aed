"""Triton's verdict on a config.pbtxt and on an ensemble is ours. Each row was judged by a real Triton 2.51."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.repository.config import check_ensembles, parse_config
from labctl.triton import readiness

# Where Python's parser and Triton's disagree: the text, and what Triton says of it ("" where it reads it).
READ = {
    "max_batch_size: - 1": "",
    "max_batch_size: -#c\n1,": "",
    "input { dims: [ - 1, -\t2 ] }": "",
    "response_cache { enable: 0x1 }": "",
    "response_cache { enable: 01 }": "",
    'backend: "\\xff"': "",
    "backend: '\\777'": "",
    "backend: '\\ud83d\\ude00 \\ud800'": "",
    "backend: '\\U00110000'": "",
    "max_batch_size: +1": "Expected integer, got: +",
    "max_batch_size: 0b1": "Need space between number and identifier.",
    "max_batch_size: 1_000": "Need space between number and identifier.",
    "max_batch_size:\u00a08": "Interpreting non ascii codepoint 194.",
    "input\u3000{ }": "Interpreting non ascii codepoint 227.",
    "\ufeffmax_batch_size: 8": "Interpreting non ascii codepoint 239.",
    "max_batch_size:\u200b8": "Interpreting non ascii codepoint 226.",
    "name: \u201ca\u201d": "Interpreting non ascii codepoint 226.",
    "max_batch_size: 8\x00": "Invalid control characters encountered in text.",
    "# \x00\nmax_batch_size: 8": "Invalid control characters encountered in text.",
    "max_batch_size:\x1c8": "Invalid control characters encountered in text.",
    'name: "\x00"': "Unexpected end of string.",
    'name: "\\d+"': "Invalid escape sequence in string literal.",
    'name: "\\X41"': "Invalid escape sequence in string literal.",
    'name: "C:\\Users\\me"': "Expected eight hex digits up to 10ffff for \\U escape sequence",
    "input { data_type: 4294967296 }": "Integer out of range (4294967296)",
}
# Only Triton refuses these: a field that 2.51 lacks is one of a newer server's, and the others name no fault of ours.
LEFT_TO_TRITON = [
    "model_metrics { }",
    'parameters { key: "" key: "" }',
    "version_policy { latest { num_versions: -0 } }",
]


@pytest.mark.parametrize("text", READ)
def test_what_triton_reads_is_not_refused_and_what_it_does_not_is(text: str) -> None:
    config, problems = parse_config("m/config.pbtxt", text)
    assert (config is None) == bool(problems) == bool(READ[text])


@pytest.mark.parametrize("text", LEFT_TO_TRITON)
def test_what_only_the_server_can_judge_is_rendered(text: str) -> None:
    assert parse_config("m/config.pbtxt", text)[1] == []


@given(
    strange=st.characters(min_codepoint=0x7F, exclude_categories=["Cs"]) | st.sampled_from("\x00\x01\x1b\x1f"),
    lines=st.integers(0, 5),
)
def test_a_character_that_cannot_stand_there_is_named_with_its_place(strange: str, lines: int) -> None:
    text = "# \u00e9\n" * lines + f'name: "\u00e9"\nmax_batch_size:{strange}8\n'
    _, (problem,) = parse_config("m/config.pbtxt", text)
    assert problem.line == lines + 2
    assert f"U+{ord(strange):04X}" in problem.text and "column 16" in problem.text


@given(
    st.lists(
        st.sampled_from(
            "\\n \\t \\\\ \\' \\\" \\x41 \\101 \\0 \\u00e9 \\U0001F600 \\? \u00e9 a # ' { \u00a0 \t".split(" ")
        )
    )
)
def test_a_string_means_what_it_means_to_triton(parts: list[str]) -> None:
    """C's escapes, which Python knows all but one of; the text of a string is any UTF-8."""
    config, problems = parse_config("m/config.pbtxt", f'name: "{"".join(parts)}"')
    assert problems == []
    assert config.name == "".join("?" if part == "\\?" else _meant(part) for part in parts)


def _meant(part: str) -> str:
    return part.encode("latin-1").decode("unicode-escape") if part.startswith("\\") else part


def test_the_cause_and_the_line_of_a_refused_text_are_told_out_of_the_log() -> None:
    head = "[libprotobuf ERROR /tmp/text_format.cc:337] Error parsing text-format inference.ModelConfig: "
    refused = (
        "E1127 1 manager.cc:1460] \"Poll failed for model directory '{}': "
        'failed to read text proto from /r/{}/config.pbtxt"'
    )
    log = [
        f"{head}2:16: Interpreting non ascii codepoint 194.",
        f"{head}2:16: Expected integer, got: \ufffd",
        refused.format("a", "a"),
        refused.format("b", "b"),  # without a line of its own
        'E0000 00:00 text_format.cc:368] Error parsing text-format inference.ModelConfig: 7:3: no field named "x".',
        refused.format("c", "c"),
    ]
    told = readiness.refusals(log)
    assert told["a"].endswith("config.pbtxt: line 2, column 16: Interpreting non ascii codepoint 194.")
    assert told["b"].endswith("config.pbtxt")
    assert told["c"].endswith('line 7, column 3: no field named "x".')


FOUR = 'input { name: "I" data_type: TYPE_FP32 dims: [4] } output { name: "O" data_type: TYPE_FP32 dims: [4] }'
MODELS = {
    "four": FOUR,
    "batch": f"max_batch_size: 8 {FOUR}",
    "small": f"max_batch_size: 2 {FOUR}",
    "any": FOUR.replace("[4]", "[-1, 4]"),
    "self": "",
}


def ensemble(*models: str, batch: int = 0, x: str = "[4]", y: str = "[4]", kind: str = "TYPE_FP32") -> str:
    """A chain of models from X to Y."""
    names = ["X", *"abc"[: len(models) - 1], "Y"]
    steps = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "I" value: "{names[at]}" }} '
        f'output_map {{ key: "O" value: "{names[at + 1]}" }} }}'
        for at, model in enumerate(models)
    ]
    return (
        f'platform: "ensemble" max_batch_size: {batch} input {{ name: "X" data_type: {kind} dims: {x} }} '
        f'output {{ name: "Y" data_type: TYPE_FP32 dims: {y} }} ensemble_scheduling {{ step [{", ".join(steps)}] }}'
    )


# The text, and whether Triton serves it.
ENSEMBLES = [
    (ensemble("self", "four"), False),
    (ensemble("batch", "four", batch=8), True),  # equal without the batch dimension
    (ensemble("batch", "any", x="[4]", y="[-1, 4]"), True),  # equal with it
    (ensemble("four", x="[1, 4] reshape { shape: [4] }"), True),
    (ensemble("four", x="[4] reshape { shape: [2, 2] }"), False),
    (ensemble("four", x="[-1]"), True),
    (ensemble("four", x="[2]"), False),
    (ensemble("four", y="[4, 4]"), False),
    (ensemble("four", kind="TYPE_INT32"), False),
    (ensemble("small", batch=8), False),
    (ensemble("small", batch=2), True),
    (ensemble("nowhere"), False),
    (ensemble("four").replace('value: "Y"', 'value: "X"').replace('"Y" data', '"X" data'), True),
    (ensemble("four", "four").replace('value: "Y"', 'value: "a"'), False),
]


@pytest.mark.parametrize(("text", "served"), ENSEMBLES)
def test_an_ensemble_is_refused_only_where_triton_refuses_it(text: str, served: bool) -> None:
    configs: dict[str, Any] = {name: parse_config(name, model)[0] for name, model in MODELS.items()}
    configs["e"] = parse_config("e", text)[0]
    assert (check_ensembles(configs) == []) == served
