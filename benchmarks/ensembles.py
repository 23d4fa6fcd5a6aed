"""Our check of an ensemble against Triton's own: generated ensembles over a few real models.

The models are loaded once; each ensemble is a model more in the same repository, which the server is asked to load.
What the check refuses, Triton must refuse: what it serves, we render.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.pbtxt import server
from labctl.repository.config import check_ensembles, parse_config
from labctl.triton import server_api

COUNT, LOAD_S = 400, 60.0
MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        if config.as_dict()["name"] == "self":
            config.add_input({"name": "I", "data_type": "TYPE_FP32", "dims": [4]})
            config.add_output({"name": "O", "data_type": "TYPE_FP32", "dims": [4]})
            config.set_max_batch_size(8)
        return config
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
IO = 'input [{ name: "I" data_type: TYPE_FP32 dims: DIMS }] output [{ name: "O" data_type: TYPE_FP32 dims: DIMS }]'
MODELS = {
    "four": IO.replace("DIMS", "[4]"),
    "batch": "max_batch_size: 8 " + IO.replace("DIMS", "[4]"),
    "small": "max_batch_size: 2 " + IO.replace("DIMS", "[4]"),
    "any": IO.replace("DIMS", "[-1, 4]"),
    "free": "max_batch_size: 8 " + IO.replace("DIMS", "[-1]"),
    "text": IO.replace("DIMS", "[1]").replace("FP32", "STRING"),
    "shaped": "max_batch_size: 8 "
    + IO.replace("DIMS", "[1] reshape: { shape: [] }")
    .replace('"O" data_type: TYPE_FP32 dims: [1]', '"O" data_type: TYPE_FP32 dims: [4]')
    .replace("dims: [4] reshape: { shape: [] }", "dims: [4]"),
    "two": 'input [{ name: "I" data_type: TYPE_FP32 dims: [4] }, '
    '{ name: "J" data_type: TYPE_FP32 dims: [4] optional: true }] '
    'output [{ name: "O" data_type: TYPE_FP32 dims: [4] }, { name: "P" data_type: TYPE_FP32 dims: [2] }]',
    "self": "",
}
TENSORS = st.sampled_from(["X", "X", "a", "b", "Y"])
KIND = st.sampled_from(["TYPE_FP32"] * 6 + ["TYPE_STRING", "TYPE_INT64"])
SHAPE = st.sampled_from(
    ["[4]"] * 6
    + ["[-1]", "[-1, 4]", "[1]", "[2]", "[4, 1]", "[1, 4] reshape: { shape: [4] }", "[4] reshape: { shape: [2, 2] }"]
    + ["[1] reshape: { shape: [] }"]
)
END = st.builds(lambda n, k, s: f'{{ name: "{n}" data_type: {k} dims: {s} }}', TENSORS, KIND, SHAPE)


def _maps(name: str, own: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.builds(lambda key, tensor: f'{name} {{ key: "{key}" value: "{tensor}" }} ', own, TENSORS)
    return st.lists(pair, min_size=1, max_size=2).map("".join)


STEP = st.builds(
    lambda model, taken, given_: f'{{ model_name: "{model}" model_version: -1 {taken}{given_} }}',
    st.sampled_from([*MODELS, *MODELS, "nowhere"]),
    _maps("input_map", st.sampled_from(["I"] * 8 + ["J", "K"])),
    _maps("output_map", st.sampled_from(["O"] * 8 + ["P", "Q"])),
)


@st.composite
def chains(draw: st.DrawFn) -> str:
    """An ensemble whose tensors are mostly in order: X, a, b, Y."""
    names = ["X", *draw(st.lists(st.sampled_from("ab"), unique=True, max_size=2)), "Y"]
    steps = [
        f'{{ model_name: "{draw(st.sampled_from([*MODELS]))}" model_version: -1 '
        f'input_map {{ key: "I" value: "{taken}" }} output_map {{ key: "O" value: "{made}" }} }}'
        for taken, made in itertools.pairwise(names)
    ]
    ends = [f'{{ name: "{name}" data_type: {draw(KIND)} dims: {draw(SHAPE)} }}' for name in ("X", "Y")]
    return f"input [{ends[0]}] output [{ends[1]}] ensemble_scheduling {{ step [{', '.join(steps)}] }}"


ANY = st.builds(
    lambda given_, taken, steps: (
        f"input [{', '.join(given_)}] output [{', '.join(taken)}] ensemble_scheduling {{ step [{', '.join(steps)}] }}"
    ),
    st.lists(END, min_size=1, max_size=2),
    st.lists(END, min_size=1, max_size=2),
    st.lists(STEP, min_size=1, max_size=2),
)
ENSEMBLES = st.builds(
    lambda batch, text: f'platform: "ensemble" max_batch_size: {batch} {text}',
    st.sampled_from([0, 8, 8, 4]),
    st.one_of(chains(), chains(), ANY),
)


def _write(repository: Path, name: str, text: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(text)


def judged(count: int) -> list[Mapping[str, Any]]:
    """Every generated ensemble: its text, what we say against it, and what Triton does."""
    found: list[Mapping[str, Any]] = []
    with server(["--disable-auto-complete-config"]) as (repository, http, _):
        texts = {name: f'backend: "python" {text}' for name, text in MODELS.items()}
        for name, text in texts.items():
            _write(repository, name, text)
            (repository / name / "1" / "model.py").write_text(MODEL)
            server_api.call_triton(http, "POST", f"/v2/repository/models/{name}/load", {}, LOAD_S)
        configs = {name: parse_config(name, text)[0] for name, text in texts.items()}

        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(text=ENSEMBLES)
        def judge(text: str) -> None:
            name = f"e{len(found)}"
            _write(repository, name, text)
            status, body = server_api.call_triton(http, "POST", f"/v2/repository/models/{name}/load", {}, LOAD_S)
            said = "" if status == 200 else server_api.triton_message(body)
            ours = check_ensembles({**configs, name: parse_config(name, text)[0]})
            found.append({"text": text, "ours": [str(problem) for problem in ours], "triton": said})

        judge()
    return found


def run(count: int = COUNT) -> dict[str, Any]:
    """The ensembles that only we refuse, and how many only Triton refuses."""
    found = judged(count)
    result: dict[str, Any] = {
        "as written": {
            "ensembles": len(found),
            "served": sum(not one["triton"] for one in found),
            "only we refuse": [one for one in found if one["ours"] and not one["triton"]],
            "only Triton refuses": [one for one in found if not one["ours"] and one["triton"]],
        }
    }
    print(describe(result))
    return result


def describe(result: dict[str, Any]) -> str:
    lines = []
    for name, one in result.items():
        ours, theirs = one["only we refuse"], one["only Triton refuses"]
        lines.append(f"{name}: {one['ensembles']:,} ensembles, {one['served']:,} served")
        lines.append(f"  refused by us alone: {len(ours)}, by Triton alone: {len(theirs)}")
        lines += [f"  {wrong['ours']}\n    {wrong['text']}" for wrong in ours[:10]]
    return "\n".join(lines)
