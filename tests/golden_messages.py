"""Every message that a LabError of src says, by its code: tests/golden/messages.txt.

Run as a program, it writes the file anew: `.venv/bin/python tests/golden_messages.py`, then read `git diff`. A name in
braces is a value. A name whose texts stand in the same function or file stands for those texts, one a line.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "messages.txt"
PARTS = ("what", "why", "remedy", "details")
# Where a call of this name has the parts of the error that it raises.
CALLS = {"LabError": PARTS, "run_to_end": ("", "", "what", "remedy")}

Texts = Mapping[str, list[str]]


def _calls(trees: Mapping[Path, ast.Module]) -> Mapping[str, tuple[str, ...]]:
    """Those, and the classes of errors that are LabErrors of a kind."""
    known, size = dict(CALLS), 0
    classes = [node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    while size != len(known):
        size = len(known)
        known |= {one.name: PARTS for one in classes if any(_name(base) in known for base in one.bases)}
    return known


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _wordings(node: ast.expr, texts: Texts) -> list[str]:
    """What an expression can say."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr():
            parts = [
                f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else ast.literal_eval(part)
                for part in node.values
            ]
            return ["".join(parts)]
        case ast.IfExp():
            return [*_wordings(node.body, texts), *_wordings(node.orelse, texts)]
        case ast.Name() if node.id in texts:
            return texts[node.id]
    return [f"{{{ast.unparse(node)}}}"]


def _assigned(body: ast.AST, known: Texts) -> Texts:
    """The names that have texts, and these."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(body):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        match node.targets[0], node.value:
            case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
                pairs = list(zip(names, values, strict=True))
            case name, value:
                pairs = [(name, value)]
        for name, value in pairs:
            said = _wordings(value, known)
            if isinstance(name, ast.Name) and not all(text.startswith("{") for text in said):
                found[name.id] += [text for text in said if text not in found[name.id]]
    return {**known, **found}


def _raised(tree: ast.AST, calls: Mapping[str, tuple[str, ...]], texts: Texts) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The code and the lines of each call, those of an inner function with its own names."""
    for node in ast.iter_child_nodes(tree):
        inner = _assigned(node, texts) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else texts
        yield from _raised(node, calls, inner)
        if not isinstance(node, ast.Call) or not (order := calls.get(_name(node.func))):
            continue
        named = {word.arg: word.value for word in node.keywords if word.arg}
        if not isinstance(code := named.pop("code"), ast.Constant):
            continue  # the error of somebody else goes on
        said = {**dict(zip(order, node.args, strict=False)), **named}
        lines = [
            f"  {part:<8}{text}" for part in PARTS if part in said for text in _wordings(said[part], inner) if text
        ]
        yield str(code.value), tuple(re.sub(r"\s*\n\s*", " ", line) for line in lines)


def text() -> str:
    """The golden text."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("src/**/*.py"))}
    calls, found = _calls(trees), defaultdict(set)
    constants = {
        path: _assigned(ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], []), {})
        for path, tree in trees.items()
    }
    everywhere = {name: said for one in constants.values() for name, said in one.items() if name.isupper()}
    for path, tree in trees.items():
        for code, lines in _raised(tree, calls, {**everywhere, **constants[path]}):
            found[code].add(lines)
    return "\n".join(
        "\n".join([code, *(line for lines in sorted(found[code]) for line in lines)]) + "\n" for code in sorted(found)
    )


if __name__ == "__main__":
    GOLDEN.write_text(text(), encoding="utf-8")
