"""Clients that disconnect as soon as they have sent a request: python leave.py HOST:GRPC_PORT [HOW_MANY]

Question 4 of the lesson. Triton 2.51 keeps the place of some of them, until it has been idle for long enough.
"""

import sys

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException

from labkit.client.ask import connect

MODEL = "iterative-gpt2"


def leave(endpoint: str) -> None:
    """Ask for 900 tokens and cancel before the first one can arrive."""
    client = connect(endpoint)
    prompt = InferInput("text_input", [1, 1], "BYTES")
    prompt.set_data_from_numpy(np.array([[b"I have lived in"]], dtype=np.object_))
    client.start_stream(callback=lambda result, error: None)
    client.async_stream_infer(MODEL, [prompt], parameters={"max_tokens": 900, "ignore_eos": True})
    client.stop_stream(cancel_requests=True)
    client.close()


def serves(endpoint: str) -> bool:
    """Whether the model is served at ``endpoint``, over gRPC."""
    try:
        with connect(endpoint) as client:
            return bool(client.is_model_ready(MODEL, client_timeout=5))
    except InferenceServerException:
        return False


def main(arguments: list[str]) -> str | None:
    """Return an error message, or None."""
    if not arguments or not all(number.isdecimal() for number in arguments[1:]):
        return "python leave.py HOST:GRPC_PORT [HOW_MANY]"
    if not serves(arguments[0]):
        return f"{MODEL} is not served at {arguments[0]} over gRPC; labctl status iterative shows the ports"
    for _ in range(int(arguments[1]) if len(arguments) > 1 else 400):
        leave(arguments[0])
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
