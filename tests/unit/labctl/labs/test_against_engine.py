"""Where the time between an engine alone and the same engine served goes: it adds up, and a sentence names the most."""

import subprocess
import sys
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli.bench import account
from labctl.cli.main import cli
from labctl.labs import overhead
from labctl.labs.overhead import PARTS, OverheadComparison
from labsched.step import Step
from labserve.alone import run_alone

MODELS_DIR = ROOT / "labs" / "shared" / "models"

# As recorded: five steps of 100 ms, of which the engine computes 98, with 2 ms between them; 20 ms before the first one
# and 15 after the last. A request needs 6 ms of preprocessing, 3 in queues and 4 of postprocessing.
BEGAN = 1000.0


def steps(count: int = 5, engine_us: int = 98_000, gap: float = 0.002) -> list[Step]:
    made = []
    for number in range(count):
        began = BEGAN + 0.020 + number * (0.100 + gap)
        made.append(Step(["1", "2"], began, began + 0.100, engine_us=engine_us))
    return made


def served(**more: Any) -> overhead.OverheadAccount:
    made = steps(**more)
    return overhead.served_account(BEGAN, made[-1].over + 0.015, made, pre=0.006, queue=0.003, post=0.004)


def alone(count: int = 5) -> overhead.OverheadAccount:
    every = [Step((), at, at + 0.0951, engine_us=95_000).to_json() for at in (0.1 * number for number in range(count))]
    return overhead.serverless_account(count * 0.0955, every)


def test_the_parts_of_a_served_run_add_up_to_all_of_it() -> None:
    found = served()
    assert found.parts == pytest.approx(
        {
            "before": 0.006,
            "queue": 0.003,
            "engine": 0.490,
            "scheduling": 0.010,
            "idle": 0.008,
            "after": 0.004,
            "wire": 0.011 + 0.011,
        }
    )
    assert found.seconds == pytest.approx(0.020 + 0.500 + 0.008 + 0.015)
    assert found.scheduling_share == pytest.approx(0.02)
    assert found.idle_ms == pytest.approx(2.0)
    assert found.step_ms == pytest.approx(98.0)


def test_a_models_mean_never_claims_more_than_there_was() -> None:
    """Requests that come together wait for each other: their means are longer than what the first one needed."""
    made = steps()
    found = overhead.served_account(BEGAN, made[-1].over + 0.001, made, pre=0.018, queue=0.5, post=0.7)
    assert found.parts["before"] == pytest.approx(0.018)
    assert found.parts["queue"] == pytest.approx(0.002)
    assert found.parts["after"] == pytest.approx(0.001)
    assert found.parts["wire"] == pytest.approx(0.0)


def test_an_engine_alone_has_no_queue_and_no_wire() -> None:
    found = alone()
    assert found.parts["engine"] == pytest.approx(0.475)
    assert found.parts["scheduling"] == pytest.approx(0.0005)
    assert found.parts["idle"] == pytest.approx(0.002)
    assert found.seconds == pytest.approx(0.4775)
    assert not any(found.parts[part] for part in ("before", "queue", "after", "wire"))


def test_the_table_and_the_sentence_say_where_the_difference_goes() -> None:
    found = OverheadComparison([served(), served()], [alone(), alone()])
    assert found.ratio == pytest.approx(0.4775 / 0.543)
    assert sum(found.differences.values()) == pytest.approx(0.543 - 0.4775)
    assert list(found.differences) == list(PARTS)
    assert found.sentence() == (
        "Served, the work is done at 0.88 of the engine's own speed (0.88 to 0.88 in 2 rounds); of the 0.07 s that it "
        "takes longer, 34% are: wire and client."
    )
    shown = account(found)
    assert "the engine's steps" in shown and "+0.015" in shown and "23%" in shown
    assert "served: 5 steps of 98.0 ms in the engine, 2.0% of a step is scheduling" in shown


def test_the_noise_of_the_rounds_is_told_and_one_round_has_none() -> None:
    found = OverheadComparison([served(), alone(), served()], [alone(), alone(), alone()])
    assert "at 0.88 of the engine's own speed (0.88 to 1.00 in 3 rounds)" in found.sentence()
    assert "rounds" not in OverheadComparison([served()], [alone()]).sentence()


@pytest.mark.parametrize(
    ("found", "end"),
    [
        (OverheadComparison([served(count=8)], [alone()]), "the engine's steps, 8 of 98.0 ms, alone 5 of 95.0 ms."),
        (OverheadComparison([alone()], [served()]), "nothing is lost."),
    ],
)
def test_more_and_slower_steps_are_told_as_such_and_where_nothing_is_lost_that_is_said(
    found: OverheadComparison, end: str
) -> None:
    assert found.sentence().endswith(end)
    assert account(found)


@pytest.mark.parametrize("log", [[], [Step(["1"], 0.0, 1.0)]])
def test_a_step_log_that_does_not_tell_is_an_error(log: list[Step]) -> None:
    with lab_error("step-log-off"):
        overhead.served_account(0.0, 1.0, log, 0.0, 0.0, 0.0)


def test_the_engine_alone_lets_whoever_waits_join_at_the_next_token() -> None:
    """Five requests of 1 to 5 tokens in two slots: 9 steps, not the 12 of three batches that wait for their longest."""
    words = {"model_path": str(MODELS_DIR / "tiny-gpt2"), "slots": "2", "kv_cache": "true", "threads": "1"}
    requests = [[[5, 6, 7], tokens] for tokens in range(1, 6)]
    found = run_alone({"loop": "gpt2", "parameters": words, "requests": requests})
    assert len(found["steps"]) == 9
    assert found["seconds"] >= sum(step["dur"] for step in found["steps"])
    assert all(0 < step["engine_us"] <= 1e6 * step["dur"] + 1 for step in found["steps"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["codegen"], 1, "codegen has no engine that runs without Triton"),
        (["inflight-batching", "--profile", "gpu"], 1, "--against-engine is for the cpu profile"),
        (["iterative", "-m", "simple-gpt2"], 1, "iterative serves its engine by iterative-gpt2"),
        (["iterative", "--concurrency", "3"], 2, "without --concurrency"),
    ],
)
def test_what_has_no_engine_of_its_own_is_refused_by_name(words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(cli, ["bench", *words, "--against-engine"])
    assert done.exit_code == code
    assert said in " ".join(f"{done.output} {done.exception}".split())


@pytest.mark.parametrize("module", ["labserve.gpt2.decoders", "labserve.slot_scheduler", "labserve.inflight.setup"])
def test_an_engine_alone_imports_nothing_of_tritons(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
