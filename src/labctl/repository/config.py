"""Checks configurations: each is parsed, and a tensor between an ensemble's steps must exist, fit, and have one source.

Triton reports a wrong ensemble one tensor at a time, after the server has started. These checks find all faults before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.repository import textproto
from labctl.texts import Problem, Use, placeholder_text

_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?(.*)$", re.DOTALL)  # some messages begin with the whole line


@dataclass(frozen=True)
class _Tensor:
    """A tensor of an ensemble as its first user declares it."""

    owner: str
    datatype: int
    dims: tuple[int, ...]
    batching: bool

    def clash(self, other: _Tensor) -> str:
        """Why Triton refuses the two to be one tensor; "" if it does not.

        Its rule (core's ensemble_utils.cc): the types are equal, and so are the shapes, without or with the batch
        dimension that a batching model adds; -1 is equal to every size.
        """
        from tritonclient.grpc.model_config_pb2 import DataType

        if self.datatype != other.datatype:
            return f"{DataType.Name(other.datatype)}, but {self.owner} has {DataType.Name(self.datatype)}"
        if _fit(self.dims, other.dims) or _fit(self._full(), other._full()):
            return ""
        return f"shape {[*other._full()]}, but {self.owner} has {[*self._full()]} (batch dimension included)"

    def _full(self) -> tuple[int, ...]:
        return (*([-1] if self.batching else []), *self.dims)


def _fit(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def check_ensembles(configs: Mapping[str, Any]) -> list[Problem]:
    """The faults for which Triton would refuse an ensemble of a repository (parsed ``ModelConfig`` by model name)."""
    problems = []
    for name, config in configs.items():
        if config is not None and config.HasField("ensemble_scheduling"):
            problems += _check_one(f"{name}/config.pbtxt", config, configs)
    return problems


def _check_one(file: str, config: Any, configs: Mapping[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    tensors: dict[str, _Tensor] = {}
    by_steps: set[str] = set()
    produced = {tensor.name for tensor in config.input}
    consumed = {tensor.name: "the ensemble's output" for tensor in config.output}

    def wrong(key: str, text: str) -> None:
        problems.append(Problem(file, 0, key, text))

    def add(name: str, user: str, spec: Any, model: Any, verb: str = "") -> None:
        own = not verb  # the ensemble's
        dims = spec.reshape.shape if own and spec.HasField("reshape") else spec.dims
        made = _Tensor(user, int(spec.data_type), tuple(dims), model.max_batch_size > 0)
        first = tensors.setdefault(name, made)
        if difference := first.clash(made):
            wrong(name, f"{user} {verb} {difference}")

    for tensor in config.input:
        add(tensor.name, "the ensemble's input", tensor, config)
    for tensor in config.output:
        if tensor.name not in tensors:
            add(tensor.name, "the ensemble's output", tensor, config)
    for step in config.ensemble_scheduling.step:
        model = configs.get(step.model_name)
        if model is None:
            if step.model_name not in configs:
                wrong(step.model_name, "a step names this model, but it is not in the repository")
            produced |= set(step.output_map.values())
            consumed |= dict.fromkeys(step.input_map.values(), step.model_name)
            continue
        if 0 < model.max_batch_size < config.max_batch_size:
            most = f"takes batches of {model.max_batch_size} at most, the ensemble of {config.max_batch_size}"
            wrong(step.model_name, f"the model {most}")
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for own in step.input_map.keys() - inputs.keys():
            has = f"it has {', '.join(inputs)}" if inputs else "its config.pbtxt has none"
            wrong(step.input_map[own], f"{step.model_name} has no input {own} ({has})")
        for own, spec in inputs.items():
            if own in step.input_map:
                add(step.input_map[own], f"{step.model_name}.{own}", spec, model, "takes")
            elif not spec.optional:
                wrong(own, f"the input of {step.model_name} is not fed by this ensemble")
        consumed = {tensor: f"{step.model_name}.{own}" for own, tensor in step.input_map.items()} | consumed
        for own in step.output_map.keys() - outputs.keys():
            has = f"it has {', '.join(outputs)}" if outputs else "its config.pbtxt has none"
            wrong(step.output_map[own], f"{step.model_name} has no output {own} ({has})")
        for own, tensor in step.output_map.items():
            if tensor in by_steps:
                wrong(tensor, "it is produced twice")
            elif own in outputs:
                add(tensor, f"{step.model_name}.{own}", outputs[own], model, "gives")
            by_steps.add(tensor)
        produced |= by_steps
    for name in sorted(consumed.keys() - produced):
        wrong(name, f"{consumed[name]} takes it, but nothing produces it")
    for name in sorted({tensor.name for tensor in config.input} - consumed.keys()):
        wrong(name, "no step takes this input of the ensemble")
    return problems


def parse_config(
    file: str, text: str, uses: Sequence[Use] = (), values: Mapping[str, Any] | None = None
) -> tuple[Any, list[Problem]]:
    """The parsed ``ModelConfig`` (None if it cannot be read) and what Triton would refuse to read.

    Args:
        uses: the template's placeholders: an error on a placeholder's line names its key.
        values: the values of the placeholders: a value with several lines moves the lines after it.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    plain, faults = textproto.readable_textproto(text)
    if faults:
        first = faults[0]
        line, keys = _blame(first.line, uses, values or {})
        return None, [Problem(file, line, ", ".join(dict.fromkeys(keys)), f"column {first.column}: {first.text}")]
    try:
        return text_format.Parse(plain, model_config_pb2.ModelConfig()), []
    except (text_format.ParseError, ValueError) as error:  # the second: an enum's number of more than 32 bits
        match = _POSITION.match(str(error))
        line, message = (int(match[1]), match[3]) if match else (getattr(error, "GetLine", int)() or 0, str(error))
        line, keys = _blame(line, uses, values or {})
        return None, [Problem(file, line, ", ".join(dict.fromkeys(keys)), " ".join(message.split()))]


def _blame(line: int, uses: Sequence[Use], values: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The line of the template that a line of the filled text comes from, and the keys on it."""
    shift = 0  # lines that values have added
    plain = [use for use in uses if not use.comment]
    for use in plain:
        if use.line + shift >= line:
            break
        if not use.quoted:  # inside quotes a line end is written as an escape
            shift += min(placeholder_text(values.get(use.key)).count("\n"), line - use.line - shift)
    line -= shift
    if keys := [use.key for use in plain if use.line == line]:
        return line, keys
    # The parser notices an empty or unclosed value only at the next word, which may be on the next line.
    before = [use.key for use in plain if use.line == line - 1 and not use.quoted]
    if any(_is_open(placeholder_text(values.get(key))) for key in before):
        return line - 1, before
    return line, []


def _is_open(value: str) -> bool:
    """Whether a value lacks something that the text after it could be taken for."""
    pairs = any(value.count(opened) != value.count(closed) for opened, closed in ("{}", "[]", "<>"))
    return not value.strip() or pairs or any(value.count(quote) % 2 for quote in "\"'")
