"""YAML, read strictly: a key that is there twice is refused."""

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


def parse_yaml(text: str) -> Any:
    """The document in ``text``. Raises yaml.YAMLError, which names the line, also for a key that is there twice."""
    return yaml.load(text, Loader=_Loader)


def merge_yaml(lower: Any, upper: Any) -> Any:
    """``upper`` over ``lower``: mappings key by key, everything else whole."""
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return upper
    both = {key: merge_yaml(value, upper[key]) if key in upper else value for key, value in lower.items()}
    return both | {key: value for key, value in upper.items() if key not in lower}
