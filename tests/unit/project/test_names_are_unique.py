"""A public name of src is one thing: whoever searches for it finds its definition and its uses, and nothing else."""

import ast
import collections

from checkout import ROOT

ENTRY_POINT = "main"  # of a module that is run as a program, as every Python program calls it
KINDS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_public_class_or_function_is_defined_in_two_modules() -> None:
    places: dict[str, set[str]] = collections.defaultdict(set)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, KINDS) and not node.name.startswith("_") and node.name != ENTRY_POINT:
                places[node.name].add(path.relative_to(ROOT).as_posix())
    assert {name: sorted(files) for name, files in places.items() if len(files) > 1} == {}
