"""``my/scheduler.py``: one scheduler of the learner's own, to which several exercises add a part each.

A part is a class, a function or a method. One that a file lacks is the labs' own, because the class inherits it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

FOLDER, FILE = "my", "scheduler.py"
OWN = f"{FOLDER}/{FILE}"
CLASS = "Scheduler"


def parts(text: str) -> dict[str, tuple[int, int]]:
    """The parts of a scheduler's file by name, each with its first line and the one after it, counted from 0.

    Raises SyntaxError.
    """
    return dict(_parts(ast.parse(text)))


def _parts(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, tuple[int, int]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            yield from ((f"{CLASS}.{name}", lines) for name, lines in _parts(node))
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, (first - 1, node.end_lineno or node.lineno)


def add_parts(text: str, starter: str, again: bool = False) -> str:
    """The file with the parts and imports of a starter that it lacks; with all its parts as new where ``again``.

    Raises SyntaxError.
    """
    end = _end_of_class(text)
    if end is None:
        return f"{text.rstrip()}\n\n\n{starter}".lstrip()
    lines = starter.splitlines()
    for name, (begin, after) in parts(starter).items():
        here, new = parts(text), lines[begin:after]
        if name in here:
            text = _spliced(text, *here[name], new) if again else text
        elif name.startswith(f"{CLASS}."):
            end = _end_of_class(text) or 0
            text = _spliced(text, end, end, ["", *new])
        else:
            text = f"{text.rstrip()}\n\n\n{chr(10).join(new)}\n"
    return _with_imports(text, starter)


def _spliced(text: str, begin: int, after: int, new: Sequence[str]) -> str:
    """The text with other lines in the place of some."""
    lines = text.splitlines()
    return "\n".join([*lines[:begin], *new, *lines[after:]]) + "\n"


def _end_of_class(text: str) -> int | None:
    """The line after the class, counted from 0; None where the file has no such class."""
    found = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == CLASS)
    return next((node.end_lineno for node in found), None)


def _with_imports(text: str, starter: str) -> str:
    """The file with the starter's imports; what it imports already is not imported again."""
    here = {ast.unparse(node) for node in ast.parse(text).body}
    for node in ast.parse(starter).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and ast.unparse(node) not in here:
            imports = [node for node in ast.parse(text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
            at = (imports[-1].end_lineno or 0) if imports else 0
            text = _spliced(text, at, at, [ast.unparse(node)])
    return text


def without(text: str, names: Collection[str]) -> str:
    """The file without some parts: the other lines keep their numbers. Raises SyntaxError."""
    lines = text.splitlines()
    for name, (begin, after) in parts(text).items():
        if name in names:
            indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
            text = _spliced(text, begin, after, [f"{indent}pass", *[""] * (after - begin - 1)])
    return text
