"""What `labctl explain` says of a recording, for a person and for a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.cli.explain import explain_command
from labsched.explain import result


def in_both_ways(*words: str | Path) -> tuple[str, dict[str, Any]]:
    """Its text on a terminal of 80 columns, and its JSON: both of the same causes, which are found once."""
    explain_result, answers = result.explain_result, list[result.Diagnosis]()

    def once(*asked: Any) -> result.Diagnosis:
        if not answers:
            answers.append(explain_result(*asked))
        return answers[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "explain_result", once)
        text, document = (_output(*words, *more) for more in ((), ("--json",)))
    return text, json.loads(document)


def in_words(*words: str | Path) -> str:
    """Its text on a terminal of 80 columns."""
    return _output(*words)


def _output(*words: str | Path) -> str:
    asked = [*map(str, words)]
    done = CliRunner().invoke(explain_command, asked, catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output
