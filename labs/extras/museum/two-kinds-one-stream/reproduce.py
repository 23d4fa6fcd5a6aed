"""One gRPC stream with requests to a decoupled model and to another, all of them wrong."""

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from labkit.clients.base import channel_options
from labkit.exhibit import CannotTell, ExhibitServer, Observation

ROUNDS, REQUESTS, PATIENCE_S = 300, 2, 10


def wrong(model: str) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=model)
    made.inputs.add(name="nope", datatype="FP32", shape=[1, 1])
    made.raw_input_contents.append(b"\0\0\0\0")
    return made


def end(server: ExhibitServer, models: list[str]) -> str:
    """How a stream of such requests ends."""
    requests = [wrong(models[n % len(models)]) for n in range(REQUESTS)]
    options = [*channel_options(server.grpc), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        calls = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            for _ in calls.ModelStreamInfer(iter(requests), timeout=PATIENCE_S):
                pass
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def reproduce(server: ExhibitServer) -> Observation:
    for number in range(1, ROUNDS + 1):
        for models in [["tokens"], ["work"]] if server.workaround else [["tokens", "work"]]:
            code = end(server, models)
            how = server.ended() or (code != "OK" and server.wait_dead(3))
            if how:
                return Observation(True, f"stream {number} ended with {code}; the server: {how}")
            if code == "DEADLINE_EXCEEDED":
                return Observation(
                    True, f"stream {number} was not answered in full in {PATIENCE_S} s; the server lives"
                )
    if not server.workaround:
        raise CannotTell(f"{ROUNDS} streams ended well; it is a race, which proves nothing")
    return Observation(False, f"{ROUNDS} streams for each model ended well")
