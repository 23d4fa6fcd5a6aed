"""YAML as our own files have it, read and written by libyaml: in pure Python it takes eight times as long."""

from __future__ import annotations

from typing import Any

import yaml

# A build without libyaml has only the slow ones.
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_FASTEST):  # type: ignore[misc]
    """YAML keeps the last of two equal keys; here the second is refused, since one of the two is a mistake."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()  # the whole document, before `<<` is resolved in it
        _check(node, set())
        return node


def _check(node: yaml.Node | None, done: set[int]) -> None:
    if not isinstance(node, yaml.CollectionNode) or id(node) in done:  # an alias is the node of its anchor
        return
    done.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, done)
        return
    lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        line, name = key.start_mark.line + 1, (key.tag, str(key.value))
        if name in lines:
            raise yaml.YAMLError(f"line {line}: the key '{key.value}' is there already, in line {lines[name]}")
        lines[name] = line
        _check(value, done)


def parse(text: str) -> Any:
    """The document in ``text``. Raises yaml.YAMLError, which names the line, also for a key that is there twice."""
    return yaml.load(text, Loader=_Loader)
