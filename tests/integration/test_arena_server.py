"""`labctl arena run --real`: on Triton step by step as in virtual time, and a foul there ends one game only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkout import ROOT
from machinery import labctl, processes_about

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("llm")]
# It plays by the rules where it is loaded for the first time, which is in the replay.
TURNS_BAD = """
from pathlib import Path
mark = Path(__file__).with_name("loaded")
again = mark.exists()
mark.touch()
def line(view):
    return ["nobody"] if again and view.step > 20 else []
"""


def test_policies_play_on_the_server_as_in_the_replay_and_a_foul_there_is_named(own: Path, tmp_path: Path) -> None:
    bad = tmp_path / "turns_bad.py"
    bad.write_text(TURNS_BAD)
    policies = (str(ROOT / "labs" / "extras" / "arena" / "victim_random.py"), str(bad), str(ROOT / "arena" / "vtc.py"))
    done = labctl("arena", "run", *policies, "--public", "--real", "--trace", "bursts", "--json", root=own)
    random, fouled, fair = json.loads(done.stdout)
    for found in (random, fair):  # also the one that played after the foul
        assert found["part_at_step"] == {"bursts": None}
        assert found["triton"]["games"]["bursts"]["steps"] > 100
        assert found["triton"]["games"] == found["replay"]["games"]
    assert random["replay"]["games"] != fair["replay"]["games"]
    assert (fouled["replay"]["disqualified"], fouled["triton"]["disqualified"]) == ("", "line")
    assert "request nobody does not wait" in fouled["triton"]["why"]
    assert processes_about(own) == []
