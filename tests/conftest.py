"""What all tests share: a home of their own, and no trace of the person's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees or changes the person's cache, token or Docker settings."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "DOCKER_HOST", "NO_COLOR", "LABS_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of weights for the whole session (LABS_TEST_CACHE keeps one between sessions)."""
    import os

    folder = Path(os.environ.get("LABS_TEST_CACHE") or tmp_path_factory.mktemp("cache"))
    os.environ["LABS_CACHE"] = str(folder)
    return folder
