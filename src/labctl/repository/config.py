"""Configurations: each is parsed, and every tensor between an ensemble's steps must exist, be produced once, and fit.

Triton tells of a wrong ensemble one tensor at a time, after the server has started. All of it can be known before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from labctl.texts import Problem, Use, as_text

OUTPUT = "the ensemble's output"  # Triton hands it on with whatever shape its step gave it: its rank is not compared
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?(.*)$", re.DOTALL)  # some messages begin with the whole line


def check_ensembles(configs: Mapping[str, Any]) -> list[Problem]:
    """Problems of every ensemble among the parsed ``ModelConfig`` of a repository, by model name."""
    problems = []
    for name, config in configs.items():
        if config is not None and config.HasField("ensemble_scheduling"):
            problems += _check_one(f"{name}/config.pbtxt", config, configs)
    return problems


def _check_one(file: str, config: Any, configs: Mapping[str, Any]) -> list[Problem]:
    problems: list[Problem] = []

    def wrong(key: str, text: str) -> None:
        problems.append(Problem(file, 0, key, text))

    produced = {tensor.name: _shape(tensor, config) for tensor in config.input}
    consumed: dict[str, list[tuple[str, tuple[int, int]]]] = {}
    for tensor in config.output:
        consumed.setdefault(tensor.name, []).append((OUTPUT, _shape(tensor, config)))
    for step in config.ensemble_scheduling.step:
        model = configs.get(step.model_name)
        if model is None:
            wrong(step.model_name, "a step names this model, but it is not in the repository")
            continue
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for own, tensor in step.input_map.items():
            if own not in inputs:
                wrong(tensor, f"{step.model_name} has no input {own} (it has {', '.join(inputs)})")
            else:
                consumed.setdefault(tensor, []).append((f"{step.model_name}.{own}", _shape(inputs[own], model)))
        for own, spec in inputs.items():
            if own not in step.input_map and not spec.optional:
                wrong(own, f"the input of {step.model_name} is not fed by this ensemble")
        for own, tensor in step.output_map.items():
            if own not in outputs:
                wrong(tensor, f"{step.model_name} has no output {own} (it has {', '.join(outputs)})")
            elif tensor in produced:
                wrong(tensor, "it is produced twice")
            else:
                produced[tensor] = _shape(outputs[own], model)
    for tensor, users in consumed.items():
        for user, shape in users:
            if tensor not in produced:
                wrong(tensor, f"{user} takes it, but nothing produces it")
            elif difference := _difference(produced[tensor], shape, rank_matters=user != OUTPUT):
                wrong(tensor, f"{user} {difference}")
    inputs_unused = {tensor.name for tensor in config.input} - set(consumed)
    for tensor in sorted(inputs_unused):
        wrong(tensor, "no step takes this input of the ensemble")
    return problems


def _shape(tensor: Any, config: Any) -> tuple[int, int]:
    """(datatype, rank on the wire): a batching model adds one dimension to what its config names."""
    return int(tensor.data_type), len(tensor.dims) + (1 if config.max_batch_size > 0 else 0)


def _difference(made: tuple[int, int], taken: tuple[int, int], rank_matters: bool) -> str:
    from tritonclient.grpc.model_config_pb2 import DataType

    if made[0] != taken[0]:
        return f"takes {DataType.Name(taken[0])}, but it is {DataType.Name(made[0])}"
    if rank_matters and made[1] != taken[1]:
        return f"takes {taken[1]} dimensions, but it has {made[1]} (batch dimension included)"
    return ""


def parse_config(
    file: str, text: str, uses: Sequence[Use] = (), values: Mapping[str, Any] | None = None
) -> tuple[Any, list[Problem]]:
    """The parsed ``ModelConfig`` (None if it is not one) and what is wrong with it.

    Args:
        uses: the template's placeholders: an error on the line of one is told with its key.
        values: what they were filled with: a value of several lines moves all that follows it.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig()), []
    except text_format.ParseError as error:
        match = _POSITION.match(str(error))
        line, message = (int(match[1]), match[3]) if match else (error.GetLine() or 0, str(error))
        line, keys = _blame(line, uses, values or {})
        return None, [Problem(file, line, ", ".join(dict.fromkeys(keys)), " ".join(message.split()))]


def _blame(line: int, uses: Sequence[Use], values: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The line of the template that a line of the filled text comes from, and the keys that stand on it."""
    shift = 0
    plain = [use for use in uses if not use.comment]
    for use in plain:
        if use.line + shift >= line:
            break
        if not use.quoted:  # inside quotes a line end is written as an escape
            shift += min(as_text(values.get(use.key)).count("\n"), line - use.line - shift)
    line -= shift
    # A value that is empty, or is not closed, is noticed only at the next word, which may be on the next line.
    for at in (line, line - 1):
        if keys := [use.key for use in plain if use.line == at and (at == line or not use.quoted)]:
            return at, keys
    return line, []
