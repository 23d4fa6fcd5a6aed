"""docs/develop/writing-a-lab.md: it explains every key of a manifest, and its lab is a good one."""

from __future__ import annotations

import shutil
from pathlib import Path

import page_lab
import pytest
from machinery import ROOT
from pydantic import BaseModel

from labctl.manifest import catalog, schema
from labctl.manifest.catalog import load
from labctl.manifest.settings import Setting
from labctl.workspace import Workspace

MODELS: list[type[BaseModel]] = [
    Setting,
    *(
        model
        for model in vars(schema).values()
        if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == schema.__name__
    ),
]


def test_the_page_names_every_key_that_a_manifest_may_have() -> None:
    keys = {field.alias or name for model in MODELS for name, field in model.model_fields.items()}
    keys |= {"include", "base", *catalog.KEYS}
    page = page_lab.PAGE.read_text(encoding="utf-8")
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


def test_the_pages_lab_stands_beside_the_shipped_ones(tmp_path: Path) -> None:
    for name in ("labs", "model_repos"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    page_lab.put_into(tmp_path)
    catalog = load(Workspace(tmp_path, tmp_path / "cache"))
    assert catalog.lab("till").folder == "20-till"
    assert len(catalog.labs) == len(load(Workspace(ROOT, tmp_path)).labs) + 1


@pytest.mark.parametrize("name", [name for name in page_lab.files() if name.endswith(".py")])
def test_the_pages_code_compiles(name: str) -> None:
    compile(page_lab.files()[name], name, "exec")
