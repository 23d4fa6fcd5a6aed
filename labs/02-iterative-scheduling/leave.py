"""Clients that go away as soon as they have asked: python leave.py HOST:GRPC_PORT [HOW_MANY]

Question 4 of the lesson. Triton 2.51 keeps the place of some of them, until it has been idle for long enough.
"""

import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput


def leave(endpoint: str) -> None:
    """Ask ``iterative-gpt2`` for 900 tokens and cancel before the first one can have come."""
    client = InferenceServerClient(endpoint)
    prompt = InferInput("text_input", [1, 1], "BYTES")
    prompt.set_data_from_numpy(np.array([[b"I have lived in"]], dtype=np.object_))
    client.start_stream(callback=lambda result, error: None)
    client.async_stream_infer("iterative-gpt2", [prompt], parameters={"max_tokens": 900, "ignore_eos": True})
    client.stop_stream(cancel_requests=True)
    client.close()


if __name__ == "__main__":
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 400):
        leave(sys.argv[1])
