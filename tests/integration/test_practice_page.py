"""The page for practising without a server in a real browser, with Pyodide as npm has it in the place of the CDN."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accessible import hidden_by_zoom, violations
from checkout import ROOT

pytestmark = pytest.mark.night

PRACTICE = ROOT / "scripts" / "site" / "practice"
VERSION = re.search(r'VERSION = "([\d.]+)"', (PRACTICE / "worker.js").read_text())[1]  # type: ignore[index]
TIMEOUT_MS = 300_000


@pytest.fixture(scope="module")
def pyodide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with npm's files of that version."""
    folder = tmp_path_factory.mktemp("pyodide")
    if not shutil.which("npm"):
        pytest.skip("no npm on this machine")
    command = ["npm", "pack", f"pyodide@{VERSION}", "--pack-destination", str(folder)]
    if subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False).returncode:
        pytest.skip("npm's registry does not answer")
    subprocess.run(["tar", "-xzf", *folder.glob("*.tgz"), "-C", folder], check=True)
    return folder / "package"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page, served as a site is."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, PRACTICE / "pack.py", folder], check=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/practice.html"
        server.shutdown()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(address)
    yield page
    page.close()


def serve_from(page: Any, folder: Path, spoilt: str = "") -> list[str]:
    """Answer for the CDN; what was asked for. ``spoilt``: a file that has a byte more."""
    asked: list[str] = []

    def answer(route: Any) -> None:
        name = route.request.url.rsplit("/", 1)[-1]
        asked.append(route.request.url)
        body = (folder / name).read_bytes() + (b" " if name == spoilt else b"")
        route.fulfill(body=body, headers={"access-control-allow-origin": "*"})

    page.route("https://**/*", answer)
    return asked


def test_an_exercise_fails_with_its_sentence_and_passes_with_the_solution_in_the_browser(
    page: Any, pyodide: Path
) -> None:
    asked = serve_from(page, pyodide)
    page.get_by_role("button", name="Check").click()
    page.get_by_text("that is static batching").wait_for()
    solution = next(ROOT.glob("labs/*/exercises/05a-*/solution/scheduler.py")).read_text()
    page.fill("#source", solution)
    page.get_by_role("button", name="Check").click()
    page.get_by_text("everything holds, with 2 seeds, on an engine that counts").wait_for()
    assert page.locator("#found tbody tr").count() >= 4
    assert {url.rsplit("/", 1)[0] for url in asked} == {f"https://cdn.jsdelivr.net/npm/pyodide@{VERSION}"}
    assert violations(page) == [] and hidden_by_zoom(page) == []


def test_a_file_of_pyodide_with_another_hash_is_not_run(page: Any, pyodide: Path) -> None:
    serve_from(page, pyodide, "pyodide.asm.wasm")
    page.get_by_role("button", name="Check").click()
    page.get_by_text("It did not work").wait_for()


def test_a_check_that_never_ends_is_stopped(page: Any, pyodide: Path) -> None:
    serve_from(page, pyodide)
    page.fill("#source", "while True:\n    pass\n")
    page.get_by_role("button", name="Check").click()
    page.get_by_text("Checking ...").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    assert page.get_by_role("button", name="Check").is_enabled()


def test_a_page_that_nobody_has_pressed_check_on_asks_no_other_server(browser: Any, address: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.select_option("#which", "06b")
    page.get_by_role("button", name="Hint").click()
    page.get_by_text("Hint 1 of 4").wait_for()
    assert [url for url in asked if not url.startswith("http://127.0.0.1")] == []
    page.close()
