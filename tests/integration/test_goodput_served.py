"""A real server's own count of its requests within limits, by the class that a request's parameters name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab_server import LabServer
from waiting import eventually

from labctl.replicas.signals import ANSWERED, GOOD
from labkit.client import metrics
from labkit.client.ask import TextStream
from labkit.client.text_model import TextModel

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("scaled")]
STEP_MS = 50  # of the model: a second token is later than the limit


def test_requests_within_the_limits_are_good_and_slower_ones_are_not_each_for_its_tenant(
    lab_server: Callable[..., LabServer],
) -> None:
    server = lab_server("scaled", slo="ttft<600000ms,tpot<20ms", step_ms=STEP_MS)
    model = TextModel.of(server.grpc, "streams")

    def counted() -> list[float | None]:
        own = metrics.scrape(server.metrics).own
        return [own.get(("streams", f"{name}{whose}")) for whose in ("ann", "bob") for name in (ANSWERED, GOOD)]

    with TextStream(server.grpc) as stream:
        records = [
            model.send(stream, "a b", tokens, tenant=whose) for whose, tokens in (("ann", 1), ("ann", 1), ("bob", 3))
        ]
        stream.wait(*records, timeout=120)
    eventually(lambda: counted() == [2, 2, 1, 0])
