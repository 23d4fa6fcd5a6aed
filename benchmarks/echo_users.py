"""``python -m benchmarks.echo_users ENDPOINT METRICS``: requests/s of lab 04's users on the echo model, over HTTP.

In a process of its own: Locust changes the standard library.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from labkit.client import stepped
from labkit.client.locust_users import TritonHttpUser

USERS, SECONDS, WARM_UP_S = 32, 4.0, 1.0


def payload(input_class: Any, output_class: Any) -> tuple[list[Any], list[Any]]:
    text = input_class("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"hello"]], dtype=np.object_))
    return [text], [output_class("text_output")]


class EchoUser(TritonHttpUser):
    model = "echo"
    payloads = (payload,)


def main(endpoint: str, metrics: str) -> None:
    EchoUser.host = f"http://{endpoint}"
    load = stepped.run_stepped_load([EchoUser], [USERS], SECONDS, WARM_UP_S, metrics, 0, lambda text: None)
    print(load.stages[0].requests_per_second)


if __name__ == "__main__":
    main(*sys.argv[1:])
