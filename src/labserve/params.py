"""Reading and checking a request's parameters, text and tensors. Errors name the input."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labsched.errors import BadInput as BadInput
from labsched.errors import Refusal as Refusal

Read = Callable[[str], Any]  # the numpy array of an input, None if it was not sent


@dataclass(frozen=True, slots=True)
class RequestParameter:
    """A request parameter: its type and the closed range that it may lie in."""

    kind: type[int] | type[float] | type[bool]
    least: float = -math.inf
    most: float = math.inf


#: How a token is chosen; shared by every model that samples.
SAMPLING = {
    "temperature": RequestParameter(float, 0.0, 100.0),
    "top_k": RequestParameter(int, -1, 2**31 - 1),
    "top_p": RequestParameter(float, 0.0, 1.0),
    "seed": RequestParameter(int, 0, 2**63 - 1),
}


STRUCTURED = "structured_outputs"  # vllm_backend's parameter for vLLM's StructuredOutputsParams, as JSON
MOST_STRUCTURED = 2**16  # characters of it


def json_schema(raw: object) -> dict[str, Any]:
    """The schema in a request's `structured_outputs`: the text `{"json": SCHEMA}`. Raises BadInput."""
    if not isinstance(raw, str) or len(raw) > MOST_STRUCTURED:
        raise BadInput(STRUCTURED, f"expected a text of at most {MOST_STRUCTURED:,} characters")
    try:
        outputs = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadInput(STRUCTURED, 'it is not JSON; expected {"json": SCHEMA}') from None
    if not isinstance(outputs, dict) or [*outputs] != ["json"] or not isinstance(outputs["json"], dict):
        raise BadInput(STRUCTURED, 'expected {"json": SCHEMA}, a JSON schema that is an object')
    schema: dict[str, Any] = outputs["json"]
    return schema


def parse_parameters(raw: str, fields: Mapping[str, RequestParameter]) -> dict[str, Any]:
    """The parameters in `raw`, a request's `parameters()`: a JSON object as text, or "".

    A number may also arrive as a string: older clients can send only whole numbers, booleans and strings.
    Raises BadInput for an unknown name, a wrong type or a value out of range.
    """
    given = json.loads(raw) if raw else {}
    if not isinstance(given, dict):
        raise BadInput("parameters", f"expected an object, got {type(given).__name__}")
    unknown = sorted(set(given) - set(fields))
    if unknown:
        raise BadInput(unknown[0], f"unknown parameter; known are {', '.join(sorted(fields))}")
    return {name: read_value(name, value, fields[name]) for name, value in given.items()}


def read_value(name: str, value: object, field: RequestParameter) -> Any:
    """A parameter's `value` as its type. Raises BadInput for a wrong type or a value out of range."""
    if field.kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise BadInput(name, f"expected true or false, got {value!r}")
    expected = "a whole number" if field.kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadInput(name, f"expected {expected}, got {value!r}")
    kind: Any = field.kind  # int or float
    try:
        number: int | float = kind(value)
    except (ValueError, OverflowError):
        raise BadInput(name, f"expected {expected}, got {value!r}") from None
    if isinstance(value, float) and number != value:
        raise BadInput(name, f"expected {expected}, got {value!r}")
    if not field.least <= number <= field.most:  # also catches NaN
        raise BadInput(name, f"{number:,} is out of range; it must be {_range(field)}")
    return number


def _range(field: RequestParameter) -> str:
    if math.isinf(field.most):
        return f"at least {field.least:,}"
    return f"from {field.least:,} to {field.most:,}"


def text(raw: bytes, name: str, most_bytes: int) -> str:
    """The text in `raw`; raises BadInput when it is empty, not UTF-8, or longer than `most_bytes`."""
    if not raw:
        raise BadInput(name, "the text is empty")
    if len(raw) > most_bytes:
        raise BadInput(name, f"the text has {len(raw):,} bytes; more than {most_bytes:,} cannot fit")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(name, f"not valid UTF-8 at byte {error.start}") from None


def read_single(read: Read, name: str, default: Any) -> Any:
    """The single value of an input, `default` where it was not sent. Raises BadInput for several."""
    value = read(name)
    if value is None:
        return default
    if value.size != 1:
        raise BadInput(name, f"one value, please; this has {value.size}")
    return value.reshape(-1)[0]


def check_range(name: str, value: float, least: float, most: float) -> float:
    """`value` if it lies within the closed range. Raises BadInput, also for NaN."""
    if not least <= value <= most:
        raise BadInput(name, f"{value:g} is out of range; it must be from {least:g} to {most:g}")
    return value


def read_number(read: Read, name: str, default: float, least: float, most: float) -> float:
    """The single number of an input. Raises BadInput if it lies outside."""
    return check_range(name, float(read_single(read, name, default)), least, most)


def read_word_lists(tensor: Any) -> list[list[int]]:
    """Lists of ids out of a [2, n] tensor: the ids one after the other, and below them where each word ends."""
    if tensor is None or tensor.size == 0:
        return []
    ids, ends = tensor.reshape(2, -1).tolist()
    parts, start = [], 0
    for end in (min(end, len(ids)) for end in ends):  # an end beyond the row is the row's
        if end > start:
            parts.append(ids[start:end])
            start = end
    return parts
