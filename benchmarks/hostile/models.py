"""The models of a running server, learnt from the server, and a request to each that it answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.triton.server_api import call

WHOLE = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
LENGTHS = ("max_tokens", "request_output_len", "REQUEST_OUTPUT_LEN", "INPUT_1")
TOKENS = 3
OWN = {"BAD_WORDS_DICT": "", "STOP_WORDS_DICT": "", "bad_words": "", "stop_words": "", "INPUT_2": "", "INPUT_3": ""}


@dataclass(frozen=True)
class Model:
    """One model: its metadata, as ``GET /v2/models/NAME`` and ``.../config`` give them."""

    name: str
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    optional: frozenset[str]
    decoupled: bool
    sequences: bool
    iterative: bool  # a request of it is scheduled again and again

    @classmethod
    def of(cls, http: str, name: str) -> Model:
        shown = json.loads(call(http, "GET", f"/v2/models/{name}", timeout=20)[1])
        config = json.loads(call(http, "GET", f"/v2/models/{name}/config", timeout=20)[1])
        return cls(
            name,
            shown["inputs"],
            shown["outputs"],
            frozenset(item["name"] for item in config["input"] if item.get("optional")),
            bool(config.get("model_transaction_policy", {}).get("decoupled")),
            "sequence_batching" in config or _asks_sequences(http, config),
            bool(config.get("sequence_batching", {}).get("iterative_sequence")),
        )

    def good(self, sequence: int = 1) -> dict[str, Any]:
        """The body of an ``infer`` request with every required input, and values of a sensible size."""
        tensors = [_tensor(given) for given in self.inputs if given["name"] not in self.optional]
        widths = {item["name"]: len(item["data"]) for item in tensors}
        for item in tensors:  # how long another input is
            if item["name"] in ("input_lengths", "REQUEST_INPUT_LEN"):
                item["data"] = [max(widths.get("input_ids", 1), 1)]
        body: dict[str, Any] = {"inputs": tensors}
        if self.sequences:
            body["parameters"] = {"sequence_id": sequence, "sequence_start": True}
            if not self.decoupled:  # else it ends with its last token
                body["parameters"]["sequence_end"] = True
        return copy.deepcopy(body)


def _asks_sequences(http: str, config: Mapping[str, Any]) -> bool:
    """Whether it is an ensemble with a model in it that is asked sequence by sequence."""
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    return any(Model.of(http, step["model_name"]).sequences for step in steps)


def _tensor(given: Mapping[str, Any]) -> dict[str, Any]:
    name, kind = given["name"], given["datatype"]
    shape = [1 if int(n) < 0 else int(n) for n in given["shape"]]
    count = 1
    for n in shape:
        count *= n
    value: Any = 0.5
    if kind == "BYTES":
        value = OWN.get(name, "I have lived in")
    elif kind == "BOOL":
        value = False
    elif kind in WHOLE:
        value = TOKENS if name in LENGTHS else 1
    return {"name": name, "shape": shape, "datatype": kind, "data": [value] * count}
