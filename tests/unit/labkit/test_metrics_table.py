"""`labctl metrics`: a number that is printed is one that there could have been, or it says whose it is."""

from __future__ import annotations

import io
import re

import pytest

from labctl.cli import metrics as command
from labkit.client import metrics

PAGE = """
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="it",version="1"} 35
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="it",reason="OTHER",version="1"} 1
nv_inference_request_failure{model="it",reason="REJECTED",version="1"} 2
nv_inference_request_failure{model="it",reason="CANCELED",version="1"} 3
# TYPE nv_inference_count counter
nv_inference_count{model="it",version="1"} 35
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="it",version="1"} 35
# TYPE labs_batch_size histogram
labs_batch_size_bucket{model="it",le="1"} 16
labs_batch_size_bucket{model="it",le="2"} 16
labs_batch_size_bucket{model="it",le="4"} 20
labs_batch_size_bucket{model="it",le="+Inf"} 20
labs_batch_size_sum{model="it"} 30
labs_batch_size_count{model="it"} 20
"""


def described(page: str) -> str:
    return command.describe_snapshot(metrics.parse_metrics(page))


def test_the_end_of_a_rescheduled_request_is_no_failure() -> None:
    text = described(PAGE)
    assert text.splitlines()[2].split()[:3] == ["it", "35", "3"]
    assert "canceled: 3 of it" in text
    assert "canceled" not in described(PAGE.replace('"CANCELED",version="1"} 3', '"X",version="1"} 0'))


def test_the_median_of_a_batch_is_a_batch_that_there_could_have_been() -> None:
    (row,) = [line for line in described(PAGE).splitlines() if line.startswith("it") and "batch size" in line]
    assert row.split() == ["it", "batch", "size", "20", "1.5", "1", "4"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("lines", [10, 24])
def test_what_is_drawn_again_each_second_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
    pages = ["".join(PAGE.replace('model="it"', f'model="m{n}"').replace("# TYPE", "#") for n in range(20))] * 2
    screen = Terminal()
    for name, value in {"COLUMNS": "80", "LINES": str(lines), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("labctl.cli.metrics.time.sleep", lambda _: None)
    monkeypatch.setattr(metrics, "scrape", lambda _: metrics.parse_metrics(pages.pop()))
    with pytest.raises(IndexError):  # no page is left
        command._follow("h:1", metrics.Snapshot())
    ups = [moves.count("A") for moves in re.findall(r"(?:\x1b\[1A\x1b\[2K)+", screen.getvalue())]
    assert 0 < max(ups) < lines, "the second drawing begins where the first one did"
    assert screen.getvalue().count("in the last second") == 3, "and once more when it ends"
