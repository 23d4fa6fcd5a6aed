"""``scripts/dashboards.py``, imported: the tables that Grafana's dashboards are made from."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from checkout import ROOT

_spec = importlib.util.spec_from_file_location("dashboards", ROOT / "scripts" / "dashboards.py")
assert _spec and _spec.loader
dashboards: Any = importlib.util.module_from_spec(_spec)
sys.modules["dashboards"] = dashboards  # dataclasses look their module up
_spec.loader.exec_module(dashboards)
