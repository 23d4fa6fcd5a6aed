"""Words that the texts avoid, in favour of plain English and the glossary's terms: scripts/check_words.py [FILE...]

Reads README.md, CONTRIBUTING.md, SECURITY.md, docs/, the labs' lessons, the exercises' tasks and the museum's pages,
without code blocks and `code`; and in the labs' and exercises' manifests what a person reads: help, verdicts, hints,
verdict sentences. Prints each place as FILE:LINE: WORD (better: ...), and exits 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**/*.md",
    "labs/*/README.md",
    "labs/*/exercises/*/task.md",
    "museum/*/README.md",
    "museum/upstream/*.md",
    "labs/*/lab.yaml",
    "labs/shared/*.yaml",
    "labs/*/exercises/*/exercise.yaml",
)
PEOPLE = "name the request, the client or the person"
BETTER = {
    "whoever|somebody|nobody|those who|who (?:comes|waits|runs|joins|decodes|sits|goes first)": PEOPLE,
    "the ones? that|those that": "name the thing",
    "of which|such an?|so many": "say it plainly",
    "(?:it|they|this|that|which) (?:is|are) no(?! longer| more)": "is not a",
    "by itself|by themselves": "on its own",
    "whilst|amongst|thereof|wherein|therein|thereby|hereby": "a word of today",
    "for (?:it|they|we) (?:is|are|has|have|can|cannot)": "because",
    "anew": "again",
    "mend|mends|mended": "fix",
    "seat|seats": "slot",
    "guesses|guessed": "draft tokens",
    "besides": "also",
    "was asked for|were asked for": "target",
    "hears? of": "is told about",
    "tells? of|told of": "shows, says",
    "has it that|whatever one|so many as": "say it plainly",
    "rectangle": "padded batch",
    "thrown out|turned away": "rejected, preempted",
}
READ = re.compile(r"\b(?:help|text|title|summary|says|stuck): ([^}]*)|^ +(?:- |\w+: )(\".*\")$", re.M)
BLOCK = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def without_code(text: str) -> str:
    """The text with its code blocks and code spans blanked, line for line."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return re.sub(r"`[^`\n]*`|^ {4,}\S.*$", blank, BLOCK.sub(blank, text), flags=re.M)


def texts_of(manifest: str) -> str:
    """The texts of a manifest that a person reads, each on its line; `{values}` and `code` are left out."""
    lines = ("; ".join(a or b for a, b in READ.findall(line)) for line in manifest.splitlines())
    return re.sub(r"`[^`\n]*`|\{[^}\n]*\}?", "", "\n".join(lines))


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Each forbidden word: its line, the word, and what to write in its place."""
    for number, line in enumerate(text.splitlines(), 1):
        for words, better in BETTER.items():
            for match in re.finditer(rf"\b(?:{words})\b", line, re.I):
                yield number, match[0], better


def main(names: list[str]) -> int:
    pages = [Path(name) for name in names] or [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    count = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for line, word, better in found(texts_of(text) if page.suffix == ".yaml" else without_code(text)):
            count += 1
            print(f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}: {word} (better: {better})")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
