"""A Sphinx extension: the site's pages are README.md, docs/ and the labs' lessons.

The pages are read where they stand. Three things differ from a usual Sphinx project:

- ``README.md`` is its folder's ``index.html``.
- docs/README.md and the lab table of README.md are the table of contents. A page that neither names is a warning,
  and so an error.
- A link to a file that is not a page leads to the repository (``REPOSITORY``).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.project import Project
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("README.md", "docs/**/*.md", "labs/*/README.md")
EXAMPLES = "docs/develop/example-*/**/*.md"  # of the example lab and exercise, which pages show
FILES = frozenset(path for pattern in PATTERNS for path in ROOT.glob(pattern)) - frozenset(ROOT.glob(EXAMPLES))
LINK = re.compile(r"\[([^]]+)\]\(([\w./-]+\.md)\)")


def repository() -> str:
    """The address of the source files: of LABS_REPOSITORY, GitHub's workflow or git's remote, else of this checkout."""
    if named := os.environ.get("LABS_REPOSITORY"):
        return named.rstrip("/")
    if "GITHUB_REPOSITORY" in os.environ:
        return f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    command = ["git", "-C", str(ROOT), "config", "remote.origin.url"]
    remote = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    web = re.fullmatch(r"(?:https://(?:[^@/]*@)?|(?:ssh://)?git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    return f"https://{web[1]}/{web[2]}" if web else ""


REPOSITORY = repository()


def source_address(path: Path) -> str:
    """Where a reader of the site finds a file or folder of the repository."""
    if not REPOSITORY:
        return path.as_uri()
    return f"{REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{quote(path.relative_to(ROOT).as_posix())}"


class Pages(Project):
    """The pages of the site: no other Markdown file is one."""

    def path2doc(self, filename: str | os.PathLike[str]) -> str | None:
        """A page's name on the site. None: the file is not a page."""
        path = ROOT / filename
        if path not in FILES:
            return None
        name = path.relative_to(ROOT).with_suffix("")
        return (name.with_name("index") if name.name == "README" else name).as_posix()


class SourceLinks(SphinxTransform):
    """A link to a file or folder that is not a page becomes a link to the repository."""

    default_priority = 100  # before Sphinx collects the files to download

    def apply(self, **kwargs: Any) -> None:
        found = [*self.document.findall(addnodes.download_reference), *self.document.findall(addnodes.pending_xref)]
        for link in found:
            path = Path(self.env.relfn2path(link["reftarget"], self.env.docname)[1])
            if link.get("refdomain") is None and path.exists():
                link.replace_self(nodes.reference("", "", *link.children, refuri=source_address(path)))


def contents() -> Iterator[str]:
    """The table of contents: one part for the labs, one for each list of docs/README.md."""
    lessons = re.compile(r"labs/\d\d-[\w-]+/README\.md")
    labs = [(text, target) for text, target in LINK.findall(_text("README.md")) if lessons.fullmatch(target)]
    yield from _part("", [("All documentation", "docs/README.md")])
    yield from _part("Labs", labs)
    for caption, listed in re.findall(r"^\*\*(.+)\*\*\n((?:.+\n?)+)", _text("docs/README.md"), re.MULTILINE):
        yield from _part(caption, [(text, f"docs/{target}") for text, target in LINK.findall(listed)])


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _part(caption: str, pages: list[tuple[str, str]]) -> Iterator[str]:
    yield from ("", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "")
    for text, target in pages:
        name = re.sub(r"README$", "index", target.removesuffix(".md"))
        first, *rest = text.split(" ")
        yield f"{' '.join([first.capitalize() if first.islower() else first, *rest])} </{name}>"  # vLLM stays so
    yield "```"


def _begin(app: Sphinx) -> None:
    app.project = app.env.project = Pages(app.srcdir, app.config.source_suffix)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    if name == app.config.root_doc:
        source[0] += "\n" + "\n".join(contents()) + "\n"


# Markup of Furo's in which axe-core finds faults, and the same markup without the fault.
ACCESSIBLE = (
    ('role="heading"', 'role="heading" aria-level="2"'),  # the captions of the table of contents
    ('<aside class="sidebar-drawer', '<aside aria-label="All pages" class="sidebar-drawer'),
    ('<aside class="toc-drawer', '<aside aria-label="This page" class="toc-drawer'),
    ("<pre>", '<pre tabindex="0">'),  # one that is too wide is scrolled by its keys
    ('<th class="head"><p></p></th>', "<td></td>"),
    ('<div id="search-results">', '<h1>Search</h1><div id="search-results">'),
)


def _end(app: Sphinx, exception: Exception | None) -> None:
    for path in Path(app.outdir).rglob("*.html") if exception is None else ():
        text = path.read_text(encoding="utf-8")
        for found, fixed in ACCESSIBLE:
            text = text.replace(found, fixed)
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", _begin)
    app.connect("build-finished", _end)
    app.connect("source-read", _read)
    app.add_transform(SourceLinks)
