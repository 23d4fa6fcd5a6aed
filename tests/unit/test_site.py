"""The documentation site: built without a warning, complete, and without a link that leads nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIRED, PYTHON = "LABS_REQUIRE_SITE", ".venv/site/bin/python"
REPOSITORY = "https://example.org/labs"


class Page(HTMLParser):
    """What a written page links to, has in its table of contents, and can be linked to at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.contents: set[str] = set()
        self.anchors: set[str] = set()
        self._in_contents = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.anchors.add(found.get("id", ""))
        if tag == "li":
            self._in_contents = found.get("class", "").startswith("toctree-")
        for link in (found[key] for key in ("href", "src") if key in found):
            self.links.add(link)
            if self._in_contents and tag == "a":
                self.contents.add(link)


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """Sphinx. Where LABS_REQUIRE_SITE is set its absence is a failure, elsewhere a reason to skip."""
    if not (ROOT / PYTHON).exists():
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, but Sphinx is not installed: make site")
        pytest.skip("Sphinx is not installed: make site")


def build(checkout: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [checkout / "scripts" / "site" / "build.sh", folder]
    env = {**os.environ, "LABS_REPOSITORY": REPOSITORY}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Each page of the site by its path below it."""
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with three pages: README.md, docs/README.md and another in docs."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts" / "site", root / "scripts" / "site")
    (root / ".venv").mkdir()
    (root / ".venv" / "site").symlink_to(ROOT / ".venv" / "site")
    (root / "docs").mkdir()
    (root / "README.md").write_text("# Labs\n\n[All](docs/README.md)\n")
    (root / "docs" / "README.md").write_text("# All\n\n**Learn**\n- [a page](page.md).\n")
    (root / "docs" / "page.md").write_text("# Page\n\n## Part\n\n[here](#part), [there](../README.md#labs)\n")
    return root


def address(page: Path) -> str:
    """Where the site has a page of the repository."""
    return page.with_suffix("").as_posix().removesuffix("README").rstrip("/") + (
        "/index.html" if page.name == "README.md" else ".html"
    )


def test_every_page_of_docs_and_every_lesson_is_in_the_table_of_contents(pages: dict[str, Page]) -> None:
    docs = {
        path.relative_to(ROOT)
        for pattern in ("*.md", "[!d]*/**/*.md", "develop/*.md")
        for path in (ROOT / "docs").glob(pattern)
    }
    lessons = {path.relative_to(ROOT) for path in ROOT.glob("labs/*/README.md")}
    assert {address(page) for page in docs | lessons} - pages["index.html"].contents == set()


def test_every_link_within_the_site_leads_to_a_file_and_an_anchor(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for name, page in pages.items():
        for link in page.links:
            target = urlsplit(urljoin(f"http://site/{name}", link))
            if urlsplit(link).scheme or link == "#":
                continue
            path = unquote(target.path).lstrip("/")
            if not (site / path).is_file() or (target.fragment and target.fragment not in pages[path].anchors):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_a_link_to_a_source_file_leads_to_the_repository(pages: dict[str, Page]) -> None:
    wanted = {
        f"{REPOSITORY}/blob/main/{name}"
        for name in ("LICENSE", "CONTRIBUTING.md", "labs/shared/models/tiny-gpt2/README.md")
    }
    assert wanted - pages["index.html"].links == set()
    linked = {link for page in pages.values() for link in page.links if link.startswith(REPOSITORY)}
    assert [link for link in linked if not (ROOT / link.removeprefix(f"{REPOSITORY}/blob/main/")).is_file()] == []


def test_the_search_knows_the_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert '"docs/learn/concepts"' in index and "prefil" in index


@pytest.mark.parametrize("link", ["missing.md", "page.md#missing", "#missing", "../src/missing.py"])
def test_a_link_that_leads_nowhere_ends_the_build(checkout: Path, tmp_path: Path, link: str) -> None:
    with (checkout / "docs" / "page.md").open("a") as page:
        page.write(f"\n[wrong]({link})\n")
    done = build(checkout, tmp_path / "site")
    assert done.returncode and "/page.md:7: WARNING" in done.stderr and "missing" in done.stderr


def test_a_page_that_the_table_of_contents_lacks_ends_the_build(checkout: Path, tmp_path: Path) -> None:
    (checkout / "docs" / "other.md").write_text("# Other\n")
    done = build(checkout, tmp_path / "site")
    assert done.returncode and "/other.md: WARNING: document isn't included in any toctree" in done.stderr


def test_a_checkout_without_a_mistake_becomes_a_site(checkout: Path, tmp_path: Path) -> None:
    done = build(checkout, tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site" / "index.html").is_file() and (tmp_path / "site" / ".nojekyll").is_file()
