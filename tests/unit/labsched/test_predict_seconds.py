"""Seconds predicted of a made-up server whose steps are unlike a sum of costs, and differ by chance.

A batch of two takes a third longer than one of one, and one of eight hardly longer than one of seven; a prompt is free
until its tokens take longer than reading the weights does. Each step differs by 3 %.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from recordings import SETTINGS, made_up_recording

from labsched.replay import answer, figures, player, steptime
from labsched.replay.fitting import fit
from labsched.replay.prediction import time_remarks
from labsched.replay.recording import Arrival, Recording
from labsched.step import Step

DECODE_MS = (0, 14.2, 19, 20, 21, 22.5, 23.5, 24.5, 25.6)  # by the batch
WITHIN = {"tokens_per_s": 0.02, "e2e_mean_ms": 0.05, "ttft_p50_ms": 0.05, "ttft_p99_ms": 0.10}
EIGHT = replace(SETTINGS, words={**SETTINGS.words, "max_num_sequences": "8"}, blocks=1000, step_tokens=256)


class MadeUp:
    def __init__(self, seed: int) -> None:
        self._rng, self._features = random.Random(seed), steptime.StepFeatures()

    def __call__(self, row: Step) -> float:
        decoding, prompt, context, *_ = self._features.of(row)
        computed = max(DECODE_MS[min(8, decoding + prompt)], 14 + 1.05 * (decoding + prompt) if prompt else 0)
        return (computed + 0.002 * context + 0.3) * 1e-3 * math.exp(self._rng.gauss(0, 0.03))


def chats(count: int, seed: int) -> list[Arrival]:
    rng, found = random.Random(seed), []
    for number in range(count):
        prompt, limit = (max(1, int(rng.gauss(mean, mean / 4))) for mean in (64, 32))
        found.append(Arrival(str(number), 0.0, 0, prompt, limit, limit, "length"))
    return found


@pytest.fixture(scope="module")
def predictors() -> list[answer.Predictor]:
    """From steps with one to eight requests in flight, recorded of four servers."""
    recordings = [
        [
            row
            for in_flight in (1, 2, 3, 4, 6, 8)
            for row in player.replay(
                Recording(EIGHT, chats(12, seed + in_flight)), EIGHT, MadeUp(seed + in_flight), in_flight
            ).steps
        ]
        for seed in (0, 100, 200, 300)
    ]
    return [answer.Predictor(Recording(EIGHT, chats(60, 9)), fit(rows)) for rows in recordings]


@pytest.mark.parametrize("load", [0.8, *(pytest.param(load, marks=pytest.mark.night) for load in (0.5, 1.1))])
def test_seconds_of_a_policy_never_recorded_are_within_the_targets(
    predictors: list[answer.Predictor], load: float
) -> None:
    """In the mean of four. Noise is also how much the four differ: beyond the knee, chance decides who goes first."""
    other = {"scheduling": "shortest_first", "max_num_sequences": "4"}
    knee = predictors[0].predict(other).figures["requests_per_s"]
    sent = replace(predictors[0].recording, arrivals=answer.at_rate(predictors[0].recording.arrivals, load * knee))
    said = [predictor.predict(other, sent).figures for predictor in predictors]
    runs = [player.replay(sent, player.change_settings(EIGHT, other), MadeUp(seed)) for seed in range(96, 100)]
    seen = [figures.figures(run.steps, run.arrived) for run in runs]
    floor = max(predictor.model.noise for predictor in predictors)
    assert 0.01 < floor < 0.04
    for name, target in WITHIN.items():
        off = [a[name] / b[name] for a, b in zip(said, seen, strict=True)]
        noise = max(floor, fmean(abs(a - b) for a, b in itertools.combinations(off, 2)))
        assert noise < 0.15, name
        predicted, measured = (fmean(one[name] for one in several) for several in (said, seen))
        assert predicted == pytest.approx(measured, rel=max(target, 1.5 * noise)), name


def share(timed: steptime.Timed, rows: Sequence[Step], judged: Callable[[Step], bool]) -> float:
    """How long the steps that are judged are said to take together, of how long they took."""
    both = [(timed(row), row.over - row.began, judged(row)) for row in rows]
    assert sum(one for *_, one in both) > 10
    return sum(said for said, _, one in both if one) / sum(took for _, took, one in both if one)


def ran(kind: type[MadeUp], step_tokens: int, lengths: Sequence[int], seed: int, answer: int = 6) -> list[Step]:
    """Steps of requests with such prompts and ``answer`` tokens of answer, one at a time."""
    sent = [Arrival(str(n), 0.0, 0, length, answer, answer, "length") for n, length in enumerate(lengths)]
    return player.replay(Recording(EIGHT, sent), replace(EIGHT, step_tokens=step_tokens), kind(seed), 1).steps


def test_pieces_of_prompts_that_make_no_token_take_less_than_others() -> None:
    class Headed(MadeUp):
        """Each token that is made needs the last layer, 6 ms."""

        def __call__(self, row: Step) -> float:
            return super().__call__(row) + 6e-3 * any(row.made)

    rng = random.Random(4)
    recorded = ran(Headed, 256, [*(rng.randint(10, 120) for _ in range(60)), *([600] * 8)], 1)
    timed, rows = steptime.Timed(fit(recorded)), ran(Headed, 64, [rng.randint(80, 250) for _ in range(30)], 2)
    assert share(timed, rows, lambda row: not any(row.made)) == pytest.approx(1, rel=0.05)


def test_numbers_of_tokens_computed_before_take_less_than_new_ones() -> None:
    class Kernels(MadeUp):
        """Each number of tokens computed for the first time takes 8 ms more."""

        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self._made: set[int] = set()

        def __call__(self, row: Step) -> float:
            new = sum(row.tokens) not in self._made
            self._made.add(sum(row.tokens))
            return super().__call__(row) + 8e-3 * new

    rng = random.Random(6)
    recorded = [ran(Kernels, 256, [rng.randint(10, 120) for _ in range(60)], seed) for seed in (1, 2)]
    timed = steptime.Timed(fit(*recorded))
    rows = ran(Kernels, 64, [rng.randint(80, 250) for _ in range(30)], 3)
    assert share(timed, rows, lambda row: sum(row.tokens) == 64) == pytest.approx(1, rel=0.05)


def test_a_step_of_decoding_takes_longer_after_one_with_prompts() -> None:
    class Cold(MadeUp):
        """A step of decoding takes 5 ms more after one with prompts."""

        _prompts = False

        def __call__(self, row: Step) -> float:
            cold, self._prompts = self._prompts and "p" not in row.phase, "p" in row.phase
            return super().__call__(row) + 5e-3 * cold

    rng = random.Random(8)
    timed = steptime.Timed(fit(ran(Cold, 256, [rng.randint(10, 120) for _ in range(60)], 1, answer=20)))
    rows = ran(Cold, 256, [rng.randint(10, 100) for _ in range(60)], 2, answer=2)
    assert share(timed, rows, lambda row: row.phase == "d") == pytest.approx(1, rel=0.05)


def test_a_number_of_tokens_takes_what_it_took_in_the_recording() -> None:
    class Blocks(MadeUp):
        """Numbers of tokens that no block of 4 divides take a quarter longer."""

        def __call__(self, row: Step) -> float:
            return super().__call__(row) * (1.25 if "p" in row.phase and sum(row.tokens) % 4 else 1.0)

    rng = random.Random(3)
    timed = steptime.Timed(fit(ran(Blocks, 256, 4 * [*range(10, 121)], 1)))
    rows = ran(Blocks, 64, [rng.randint(130, 250) for _ in range(30)], 2)
    assert share(timed, rows, lambda row: sum(row.tokens) == 64) == pytest.approx(1, rel=0.05)


def test_a_step_takes_longer_after_a_pause() -> None:
    class Asleep(MadeUp):
        """A step takes 20 ms more after 100 ms without one."""

        _over = -1.0

        def __call__(self, row: Step) -> float:
            took = super().__call__(row) + 20e-3 * (row.began - self._over > 0.1)
            self._over = row.began + took
            return took

    rng = random.Random(5)
    apart = answer.at_rate([Arrival(str(n), 0.0, 0, rng.randint(10, 120), 3, 3, "length") for n in range(40)], 2.0)
    recorded = player.replay(Recording(EIGHT, apart[:20]), EIGHT, Asleep(2)).steps
    timed = steptime.Timed(fit(ran(Asleep, 256, [rng.randint(10, 120) for _ in range(60)], 1), recorded))
    rows = player.replay(Recording(EIGHT, apart[20:]), EIGHT, Asleep(3)).steps
    assert share(timed, rows, lambda row: not row.busy) == pytest.approx(1, rel=0.05)


def test_the_way_of_a_request_to_the_model_counts_in_a_prediction() -> None:
    made_up = made_up_recording()
    alone = replace(made_up, arrivals=[replace(made_up.arrivals[0], at=0.0, prompt=30)])
    sent = replace(made_up, zero=100.0).since_sent({a.name: a.at + 100 - 0.007 for a in made_up.arrivals})
    before, after = (
        answer.Predictor.of(made_up).predict({}, replace(alone, way=way)).figures for way in (0.0, sent.way)
    )
    assert sent.way == pytest.approx(0.007)
    assert after["ttft_p50_ms"] - before["ttft_p50_ms"] == pytest.approx(7.0)
    assert after["tpot_p50_ms"] == pytest.approx(before["tpot_p50_ms"])


def test_costs_of_nothing_are_not_told() -> None:
    told, *_ = time_remarks(fit(made_up_recording().steps).to_json())
    assert told.count(" for a ") == 3, "of nine costs the recording has three"
