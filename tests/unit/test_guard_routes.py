"""Each route of Triton 2.51 is judged or refused by the guard, and so is each that Triton does not have."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from labguard.routes import GRPC, HEALTH, SERVICE, Rule, of_grpc, of_http
from labguard.rules import Refused

# The routes of HTTPAPIServer::Handle (src/http_server.cc of triton-inference-server/server, tag v2.51.0), written out:
# its regular expressions have these alternatives. None: refused.
MODEL = {
    "": Rule.NO_BODY,
    "/ready": Rule.NO_BODY,
    "/config": Rule.NO_BODY,
    "/stats": Rule.NO_BODY,
    "/infer": Rule.INFER,
    "/generate": Rule.JSON,
    "/generate_stream": Rule.JSON,
    "/trace/setting": None,
}
MEMORY = [f"{region}/{action}" for region in ("", "/region/r") for action in ("status", "register", "unregister")]
HTTP: dict[str, Rule | None] = {
    "/v2": Rule.NO_BODY,
    "/v2/health/live": Rule.NO_BODY,
    "/v2/health/ready": Rule.NO_BODY,
    "/v2/models/stats": Rule.NO_BODY,
    "/v2/logging": None,
    "/v2/trace/setting": None,
    **{f"/v2/models/m{version}{what}": rule for version in ("", "/versions/1") for what, rule in MODEL.items()},
    **{f"/v2/{kind}sharedmemory{rest}": None for kind in ("system", "cuda") for rest in MEMORY},
    "/v2/repository/index": Rule.JSON,
    "/v2/repository/models/m/load": Rule.JSON,
    "/v2/repository/models/m/unload": Rule.JSON,
    "/v2/repository/r/index": None,
    "/v2/repository/r/models/m/load": None,
    "/v2/repository/r/models/m/unload": None,
}
METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "MKCOL",
    "COPY",
    "MOVE",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
    "TRACE",
    "CONNECT",
    "PATCH",
)
# The services of src/grpc (grpc_server.cc, infer_handler.cc, stream_infer_handler.cc), same tag.
CALLS: dict[str, Rule | None] = {
    **dict.fromkeys(
        (
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "ModelConfig",
            "ModelStatistics",
        ),
        Rule.BOUNDED,
    ),
    "ModelInfer": Rule.MESSAGES,
    "ModelStreamInfer": Rule.STREAM,
    **dict.fromkeys(
        (
            "RepositoryIndex",
            "RepositoryModelLoad",
            "RepositoryModelUnload",
            "SystemSharedMemoryStatus",
            "SystemSharedMemoryRegister",
            "SystemSharedMemoryUnregister",
            "CudaSharedMemoryStatus",
            "CudaSharedMemoryRegister",
            "CudaSharedMemoryUnregister",
            "TraceSetting",
            "LogSettings",
        )
    ),
}


@pytest.mark.parametrize("path", HTTP)
@pytest.mark.parametrize("query", ["", "?a=b"])
def test_every_http_route_of_triton_is_judged_with_one_method_or_refused(path: str, query: str) -> None:
    opened = {}
    for method in METHODS:
        try:
            opened[method] = of_http(method, path + query)[0]
        except Refused as error:
            assert error.status == 403
    rule = HTTP[path]
    method = "GET" if rule is Rule.NO_BODY else "POST"
    assert opened == ({method: rule} if rule else {})


def test_every_grpc_method_of_triton_is_judged_or_refused() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {method.name for method in service.methods} == CALLS.keys()
    for name, rule in CALLS.items():
        if rule:
            assert of_grpc(SERVICE + name) is rule
        else:
            with pytest.raises(Refused):
                of_grpc(SERVICE + name)
    assert of_grpc(f"{HEALTH}Check") is Rule.BOUNDED
    assert set(GRPC) == {f"{HEALTH}Check", *(SERVICE + name for name, rule in CALLS.items() if rule)}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "*",
        "/v2/",
        "/v3",
        "/metrics",
        "/v2/models/",
        "/v2/models/m/",
        "/v2/models/m/infer/",
        "/v2/health",
        "/v2/models/%6d/infer",
        "/v2/models/m%2finfer",
        "/v2/models/m;x/infer",
        "/v2/models/m/versions/-1/infer",
        "/v2/models/m/versions/\u0661/infer",
        "/v2/models/m\u0661/infer",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/" + "m" * 256,
        "/V2/models/m/infer",
        "/v2/models/m/infer\n",
        "/v2/models/m/infer#x",
        "//v2",
    ],
)
def test_a_route_that_triton_does_not_have_or_another_spelling_is_refused(path: str) -> None:
    for method in METHODS:
        with pytest.raises(Refused):
            of_http(method, path)
    with pytest.raises(Refused):
        of_grpc(path)


def test_the_model_of_a_route_is_the_one_that_triton_will_ask() -> None:
    assert of_http("POST", "/v2/models/a-b.c_1/versions/2/infer") == (Rule.INFER, "a-b.c_1")
    assert of_http("GET", "/v2/models/stats") == (Rule.NO_BODY, "")
    assert of_grpc(f"{SERVICE}ModelInfer") is Rule.MESSAGES
