"""Every builder command line, held against the words that the release's parser takes and the scripts that it has."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from machinery import ROOT

from labbuild.releases import release, table
from labbuild.tensorrt_llm import commands
from labctl.artifacts import engines

FLAGS = yaml.safe_load((Path(__file__).parent / "data/trtllm/flags.yaml").read_text(encoding="utf-8"))
CODEGEN = ROOT / "labs" / "shared" / "models" / "tiny-codegen"
CASES = list(itertools.product(("llama", "codegen"), ("none", "fp8"), (1, 2), ("false", "true")))


class Strict(argparse.ArgumentParser):
    """Takes whole words only, as a person reads them, and fails like a test."""

    def error(self, message: str) -> NoReturn:
        raise AssertionError(f"{self.prog}: {message}")


def parser(name: str, known: dict[str, Any]) -> Strict:
    made = Strict(name, allow_abbrev=False)
    for option in known["options"]:
        made.add_argument(f"--{option}", required=option in ("output_dir", "export_path"))
    for switch in known["switches"]:
        made.add_argument(f"--{switch}", action="store_true")
    return made


def script_of(argv: list[str], examples: tuple[str, ...]) -> tuple[str, list[str]]:
    """Which builder a command runs, by its path below the examples, and its arguments."""
    if argv[0] == "run-example":
        assert argv[1] == ":".join(examples)
        return argv[2], argv[3:]
    if argv[0] == "python3":
        return argv[1].removeprefix(f"{examples[0]}/"), argv[2:]
    return argv[0], argv[1:]


@pytest.mark.parametrize("name", [it.name for it in table().values() if it.steps])
@pytest.mark.parametrize(("model", "quantization", "tp_size", "chunked"), CASES)
def test_the_releases_own_parser_takes_every_command_line(
    name: str, model: str, quantization: str, tp_size: int, chunked: str
) -> None:
    if chunked == "true" and name == "0.5.0":
        pytest.skip("0.5.0 has no chunked context, and the stack refuses it")
    options = {"quantization": quantization, "tp_size": tp_size, "chunked_context": chunked}
    wish = engines.request("tensorrt-llm", str(CODEGEN), {"release": name, "model": model, **options})
    steps = commands(wish.options, CODEGEN, Path("/scratch"), Path("/engine"))
    own = [argv for argv in steps if argv[:2] != ["python3", "-m"]]
    assert own
    for argv in own:
        script, words = script_of(argv, release(name).examples)
        assert script in FLAGS[name], f"{name} has no {script}"
        parser(script, FLAGS[name][script]).parse_args(words)


def test_a_word_that_a_release_does_not_know_would_be_found() -> None:
    known = FLAGS["0.5.0"]["gptj/build.py"]
    with pytest.raises(AssertionError, match="unrecognized arguments: --tp_size 2"):
        parser("gptj/build.py", known).parse_args(["--tp_size", "2", "--output_dir", "x"])


def test_every_release_says_where_its_words_were_read() -> None:
    assert {it.name for it in table().values() if it.steps} == FLAGS.keys()
    assert all(known["at"] for scripts in FLAGS.values() for known in scripts.values())
