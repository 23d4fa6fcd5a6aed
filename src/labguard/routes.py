"""Triton's routes that the guard opens, and how each is judged. All others are refused, known to Triton or not."""

from __future__ import annotations

import re
from enum import Enum

from labguard.rules import Refused

SERVICE = "/inference.GRPCInferenceService/"
HEALTH = "/grpc.health.v1.Health/"
MODEL = r"/v2/models/(?P<model>[\w.-]{1,255})(?:/versions/(?P<version>[0-9]{1,18}))?"  # no "%": one spelling only


class Rule(Enum):
    """How a request of a route is judged."""

    NO_BODY = "it must have no body"
    JSON = "its body is parsed"
    INFER = "its body is parsed; tensors may follow the JSON"
    BOUNDED = "its messages are bounded"
    MESSAGES = "its messages are parsed"
    STREAM = "its messages are parsed; all are for models of one kind"


#: A header of labctl's secret opens the last of them, and Triton checks it (labctl.triton.arguments).
HTTP = (
    ("GET", r"/v2(/health/(live|ready))?", Rule.NO_BODY),
    ("GET", r"/v2/models/stats", Rule.NO_BODY),
    ("GET", rf"{MODEL}(/(ready|config|stats))?", Rule.NO_BODY),
    ("POST", rf"{MODEL}/infer", Rule.INFER),
    ("POST", rf"{MODEL}/generate(_stream)?", Rule.JSON),
    ("POST", r"/v2/repository/(index|models/[\w.-]{1,255}/(load|unload))", Rule.JSON),
)
_HTTP = [(method, re.compile(pattern, re.ASCII), rule) for method, pattern, rule in HTTP]
GRPC = {
    **{
        SERVICE + name: Rule.BOUNDED
        for name in (
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "ModelConfig",
            "ModelStatistics",
        )
    },
    HEALTH + "Check": Rule.BOUNDED,
    SERVICE + "ModelInfer": Rule.MESSAGES,
    SERVICE + "ModelStreamInfer": Rule.STREAM,
}


def of_http(method: str, path: str) -> tuple[Rule, str]:
    """How a request on the HTTP listener is judged, and the model that it names ("" for none).

    Args:
        path: with its query, if it has one; Triton routes by what is before it.

    Raises:
        Refused: the guard does not open this route.
    """
    path = path.partition("?")[0]
    for allowed, pattern, rule in _HTTP:
        if allowed == method and (found := pattern.fullmatch(path)):
            return rule, found.groupdict().get("model") or ""
    raise Refused(f"the guard does not open {method[:20]} {path[:200]}", 403)


def of_grpc(path: str) -> Rule:
    """How a call on the gRPC listener is judged.

    Raises:
        Refused: the guard does not open this method.
    """
    if path not in GRPC:
        raise Refused(f"the guard does not open {path[:200]}", 403)
    return GRPC[path]
