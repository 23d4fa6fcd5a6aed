"""A hundred recordings: do `predict` and `plan` answer, how often do they extrapolate, and are they right?

A recording is made by a scheduler in virtual time, over an engine whose true times are known and are no sum of costs:
a processor whose batches have steps in their cost, with noise and with moments at which it stands still, or a device
that `pace` names. Workloads at LOADS of the knee go to each of the engines. Each recording is asked what QUESTIONS
would have done and what to plan; the truth is the mean of TRUTHS runs of the same engine with that setting, each with
noise of its own. The prediction sees the recording alone.

A pair of settings counts where their means differ by more than their noise: how much two runs of a setting differ, of
the two the one that differs more. One run of each would not do: then it is the noise that says which setting is better
where they hardly differ.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations, product
from statistics import fmean, median
from typing import Any

from benchmarks.predict_seconds import BASE, DECISIONS, KINDS, differences, requests
from labctl.recordings import vllm
from labctl.runtimes.layers import layer
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.tables import format_table
from labsched.log.lines import WORDS
from labsched.log.settings import SchedulerSettings
from labsched.replay import answer, player
from labsched.replay.figures import figures
from labsched.replay.player import ReplayResult
from labsched.replay.recording import Arrival, Recording
from labsched.replay.slo import Slo
from labsched.replay.steptime import Paced
from labsched.replay.vllm_scheduler import change_vllm_settings
from labsched.step import Step

LOADS = (0.3, 0.5, 0.7, 0.9, 1.1)
WORKLOADS = (*KINDS, "mixed")
COUNT = 30  # requests of each
TRUTHS, VLLM_TRUTHS, PACED_TRUTHS = 8, 4, 2  # runs behind a truth: vLLM's take long, with pace there is no noise
QUESTIONS = (
    {"max_num_sequences": "4"},
    {"max_num_sequences": "16"},
    {"max_num_tokens": "64"},
    {"max_tokens_in_paged_kv_cache": "1024"},
)
JUDGED = ("ttft_p50_ms", "e2e_mean_ms")
LARGE = 0.05  # differences of so much are counted for themselves too
ENGINES = {  # the recorded settings of ours, and the engine's part of them
    "ours, a processor": {},
    "ours, a processor, preemption": {
        "batch_scheduler_policy": "max_utilization",
        "max_tokens_in_paged_kv_cache": "640",
    },
    "ours, a processor, whole prompts": {"enable_chunked_context": "false"},
    "ours, pace=h100": {"pace": "h100", "pace_shape": "llama-2-7b", "pace_slower": "1"},
    "ours, pace=h100-measured": {"pace": "h100-measured", "pace_shape": "llama-2-7b", "pace_slower": "1"},
    "vLLM's scheduler, a processor": {"engine": "vllm", "max_num_tokens": "256", "block_size": "32"},
}


@dataclass
class Processor:
    """What a step takes: every fourth request that decodes costs as much as four, large prompts have a price of their
    own, and 6 % are noise.

    It stands still for ``pauses``, each its beginning and its length in seconds.
    """

    seed: int
    pauses: Sequence[tuple[float, float]] = ()
    chance: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.chance.seed(self.seed)

    def __call__(self, row: Step) -> float:
        decoding = row.phase.count("d")
        prompts = sum(row.tokens) - decoding
        usual = 4e-3 + 1.2e-3 * -(-decoding // 4) + 9e-5 * prompts + (2e-3 if prompts > 64 else 0.0)
        over = row.began + usual * self.chance.lognormvariate(0.0, 0.06)
        for began, length in self.pauses:
            if began < over and began + length > row.began:
                over += began + length - max(began, row.began)
        return over - row.began


@dataclass
class Engine:
    """A scheduler over an engine: what makes recordings, and what predicts from them."""

    settings: SchedulerSettings
    replayed: Callable[..., ReplayResult]
    changed: Callable[[SchedulerSettings, Mapping[str, str]], SchedulerSettings]

    def plays(self, arrivals: Sequence[Arrival], assignments: Mapping[str, str], seed: int, held: bool) -> Recording:
        settings = self.changed(self.settings, assignments) if assignments else self.settings
        pauses = ((1.0, 0.4), (3.0, 0.7)) if held else ()
        times: Any = Paced(settings.pace) if settings.pace else Processor(seed, pauses)
        done = self.replayed(Recording(settings, arrivals), settings, times)
        return Recording(settings, arrivals, done.steps)


def run(workspace: Workspace, only: str = "") -> dict[str, Any]:
    """Judge the recordings of each engine whose name contains ``only``."""
    rows: list[tuple[str, ...]] = []
    whole = Counter[str]()
    with ExitStack() as stack:
        for name, words in ENGINES.items():
            if only not in name:
                continue
            found = _engine(_made(stack, workspace, words))
            whole.update(found["counts"])
            errors = [sorted(map(abs, found["errors"][figure])) for figure in JUDGED]
            counts = found["counts"]
            rows.append(
                (
                    name,
                    f"{counts['recordings']}",
                    f"{counts['answered']} of {counts['asked']}",
                    f"{counts['extrapolated']}",
                    f"{counts['planned']} of {counts['plans']}",
                    f"{counts['marked plans']}",
                    f"{counts['right']} of {counts['pairs']}",
                    f"{counts['right of large']} of {counts['large pairs']}",
                    *(f"{median(e):.1%}, {e[int(0.9 * len(e))]:.1%}" for e in errors),
                )
            )
            print(*rows[-1], sep=" | ", flush=True)
    large = f"by over {LARGE:.0%}"
    answers = ("predictions", "extrapolated", "plans", "extrapolated")
    header = ("engine", "recordings", *answers, "decisions", large, *JUDGED)
    print(format_table(rows, header))
    right = whole["right"] / max(1, whole["pairs"])
    all_answered = whole["answered"] == whole["asked"] and whole["planned"] == whole["plans"]
    target = "yes" if right >= DECISIONS and all_answered else "NO"
    said = (
        f"answered {whole['answered'] + whole['planned']} of {whole['asked'] + whole['plans']}, decisions {right:.1%}"
    )
    row = f"{whole['recordings']} recordings", said, f"all, {DECISIONS:.0%}", target
    return {"counts": dict(whole), "rows": [row]}


def _made(stack: ExitStack, workspace: Workspace, words: Mapping[str, str]) -> Engine:
    given = {**dict.fromkeys(WORDS, ""), **BASE, "gpt_model_type": "inflight_fused_batching", **words}
    blocks = int(given["max_tokens_in_paged_kv_cache"] or 6400) // 32
    settings = SchedulerSettings(given, blocks, 32, int(given["max_num_tokens"] or 256), 2048, 3000)
    if given["engine"] != "vllm":
        return Engine(settings, player.replay, player.change_settings)
    replays = stack.enter_context(vllm.VllmReplays(layer("vllm", workspace).require()))
    return Engine(settings, replays.replay, change_vllm_settings)


def _engine(engine: Engine) -> dict[str, Any]:
    """The answers for each workload at each of LOADS, and how far they are off."""
    counts, errors = Counter[str](), {figure: list[float]() for figure in JUDGED}
    for number, (kind, load) in enumerate(product(WORKLOADS, LOADS)):
        sent, held = requests(kind, COUNT, seed=number), number % 3 == 0
        peak = _figures(engine.plays(sent, {}, number, False))["requests_per_s"]
        arrivals = answer.at_rate(sent, load * peak)
        made = engine.plays(arrivals, {}, 100 + number, held)
        counts["recordings"] += 1
        recorded = _figures(made)
        slo = Slo.parse(f"ttft<{2 * recorded['ttft_p50_ms'] + 50:.0f}ms")
        predictor = answer.Predictor.of(made, 0, slo, engine.replayed, changed=engine.changed)
        runs = PACED_TRUTHS if engine.settings.pace else VLLM_TRUTHS if engine.settings.vllm else TRUTHS
        seeds = range(1000 + number * runs, 1000 + (number + 1) * runs)
        settings = [([_figures(engine.plays(arrivals, {}, seed, held)) for seed in seeds], recorded)]
        for question in QUESTIONS:
            try:
                true = [_figures(engine.plays(arrivals, question, seed, held)) for seed in seeds]
            except LabError:  # a server with this setting would refuse a request: there is no answer
                counts["without an answer"] += 1
                continue
            counts["asked"] += 1
            try:
                said = predictor.predict(question)
            except LabError as error:
                print("no answer:", error.what, error.why, question, flush=True)
                continue
            counts["answered"] += 1
            counts["extrapolated"] += said.extrapolated.steps > 0
            settings.append((true, {**said.figures}))
            for figure in JUDGED:
                errors[figure].append(said.figures[figure] / fmean(one[figure] for one in true) - 1)
        for figure in JUDGED:
            counts.update(_decided([([one[figure] for one in true], said[figure]) for true, said in settings]))
        counts["plans"] += 1
        try:
            rate = load * peak
            plans = predictor.slots_enough(rate), predictor.replicas_enough(rate), predictor.knee()
            counts["planned"] += 1
            counts["marked plans"] += any(plan.extrapolated.steps for plan in plans)
        except LabError as error:
            print("no plan:", error.what, error.why, kind, load, flush=True)
        print(f"{kind} at {load}, so far:", *(f"{what} {count}," for what, count in counts.items()), flush=True)
    return {"counts": counts, "errors": errors}


def _decided(settings: Sequence[tuple[Sequence[float], float]]) -> Counter[str]:
    """The pairs that differ by more than their noise, and in how many the better one is named.

    Args:
        settings: for each setting its measured values, where smaller is better, and the predicted one.
    """
    found = Counter[str]()
    known = [(true := fmean(runs), differences([one / true for one in runs]), said) for runs, said in settings]
    for (one, noise, said), (other, noise_of_other, said_of_other) in combinations(known, 2):
        difference = abs(one / other - 1)
        if difference > max(noise, noise_of_other):
            right = int((one < other) == (said < said_of_other))
            found.update({"pairs": 1, "right": right})
            found.update({"large pairs": 1, "right of large": right} if difference > LARGE else {})
    return found


def _figures(made: Recording) -> dict[str, float]:
    return figures(made.steps, {arrival.name: arrival.at for arrival in made.arrivals})
