"""Converts a config.pbtxt, as Triton's parser reads it, for Python's parser.

Triton uses protobuf's C++ parser. Python's differs in blanks, numbers and escapes. Each difference was found by parsing
generated texts with both (``make bench ARGS=pbtxt``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

_GAP = r"(?:[ \t\r\n\v\f]|\#[^\n]*(?:\n|\Z))*"
_TOKEN = re.compile(
    rf"""(?P<comment>\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<minus>-)(?P<gap>{_GAP})(?=[\w.])
    |(?P<number>(?<![\w.])(?:0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?))(?P<tail>\w*)
    |(?P<plus>\+)
    |(?P<plain>[ \t\r\n\v\f]+|[!-~])
    |(?P<strange>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<hex>[0-9a-fA-F]{1,2})|(?P<plain>[abfnrtv\\?'\"])"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>00[01][0-9a-fA-F]{5})|(?P<wrong>.))",
    re.DOTALL,
)
_CALLED = {"\ufeff": "byte order mark", "\0": "null character"}


@dataclass(frozen=True)
class SyntaxFault:
    """A fault that Triton refuses, and its place: line and column count from 1."""

    line: int
    column: int
    text: str


def readable_textproto(text: str) -> tuple[str, list[SyntaxFault]]:
    """The text for Python's parser, with its lines where they were, and the faults at which Triton's would stop."""
    parts: list[str] = []
    faults: list[SyntaxFault] = []
    for match in _TOKEN.finditer(text):
        kind, found = match.lastgroup, match[0]
        if kind == "string":
            parts.append(_escapes(found))
            faults += (SyntaxFault(*_place(text, match.start() + at), words) for at, words in _wrong_in(found))
        elif kind == "gap":  # "- 1" is a number there; its line breaks stay, in front
            parts.append("\n" * found.count("\n") + "-")
        elif kind == "comment" and "\0" not in found:
            parts.append("#")
        elif kind == "tail" and not match["tail"]:
            parts.append(_decimal(match["number"]))
        elif kind in ("tail", "plus"):
            faults.append(SyntaxFault(*_place(text, match.start()), f"{found!r} is not a number"))
        elif kind == "plain":
            parts.append(found)
        else:
            at = match.start() + max(found.find("\0"), 0)
            words = f"{_describe_character(text[at])} stands there; outside of quotes there must be plain ASCII"
            faults.append(SyntaxFault(*_place(text, at), words))
            parts.append(" ")
    return "".join(parts), faults


def _decimal(number: str) -> str:
    """A whole number as a decimal one: Python does not take 0x1 and 01 for true."""
    if re.fullmatch(r"0[xX].*|0[0-7]+", number):
        return str(int(number, 16 if number[1] in "xX" else 8))
    return number


def _describe_character(char: str) -> str:
    """A character in words, with its code point: it may be invisible."""
    code = f"U+{ord(char):04X}"
    kind = "control character" if char < "\xa0" else "character"
    name = _CALLED.get(char) or unicodedata.name(char, kind).lower()
    visible = char.isprintable() and not char.isspace()
    return f"{char} ({name}, {code})" if visible else f"a {name} ({code})"


def _wrong_in(literal: str) -> Iterator[tuple[int, str]]:
    """The offset and the words of each escape that C++ does not know."""
    if (at := literal.find("\0")) >= 0:
        yield at, f"{_describe_character(literal[at])} stands there"
    for match in _ESCAPE.finditer(literal):
        if match["wrong"]:
            yield match.start(), f"\\{match['wrong']} is not an escape sequence; a backslash itself is written \\\\"


def _escapes(literal: str) -> str:
    """The literal with every byte that is not plain ASCII as an octal escape, which means the same to Python."""
    data = bytearray()
    end = 1
    for match in _ESCAPE.finditer(literal, 1, len(literal) - 1):
        data += literal[end : match.start()].encode("utf-8", "replace") + _value(match)
        end = match.end()
    data += literal[end:-1].encode("utf-8", "replace")
    # A string field holds UTF-8. It is not for us to refuse other bytes.
    sound = data.decode("utf-8", "replace").encode()
    return '"' + "".join(chr(b) if 0x20 <= b < 0x7F and b not in b"\"'\\" else f"\\{b:03o}" for b in sound) + '"'


def _value(match: re.Match[str]) -> bytes:
    if match["octal"]:
        return bytes([int(match["octal"], 8) & 0xFF])
    if match["hex"]:
        return bytes([int(match["hex"], 16)])
    if match["plain"]:
        return {"a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v"}.get(
            match["plain"], match["plain"].encode()
        )
    if code := match["short"] or match["long"]:
        return chr(min(int(code, 16), 0x10FFFF)).encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    return b"?"


def _place(text: str, at: int) -> tuple[int, int]:
    before = text[:at]
    return before.count("\n") + 1, at - before.rfind("\n")
