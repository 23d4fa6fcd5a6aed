"""What Compose makes of a stack with replicas: every server as the first but for its number and its ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compose_view
import psutil
from machinery import of_its_own

from labctl.options import Options
from labctl.runtimes.envoy.container import CONFIG


def services(tmp_path: Path, balance: str = "", **options: Any) -> dict[str, Any]:
    """Compose's own view of ``labctl up iterative --runtime compose --replicas 2 --balance ...``."""
    given = Options(balance=balance, **{"replicas": 2, **options})
    stack, _ = compose_view.written(of_its_own(tmp_path), "iterative", given)
    return compose_view.of_stack(stack.folder.env_file)


def test_a_replica_is_as_the_first_but_for_its_number_and_its_ports(tmp_path: Path) -> None:
    found = services(tmp_path)
    first, second = found["triton"], found["triton-2"]
    for one, number in ((first, "1"), (second, "2")):
        assert one["environment"].pop("LABS_REPLICA") == number
        assert one["labels"].pop("labs.replica") == number
    published = [
        {(port["host_ip"], port["target"]): port["published"] for port in one.pop("ports")} for one in (first, second)
    ]
    assert [list(one) for one in published] == [[("127.0.0.1", port) for port in (8000, 8001, 8002)]] * 2
    assert len({port for one in published for port in one.values()}) == 6
    for one in (first, second):
        one.pop("profiles", None)
    assert first == second
    envoy = found["envoy"]
    front = tmp_path / "checkout" / ".labs" / "iterative" / "front"
    assert envoy["command"][-1] == str(front / CONFIG)
    mounts = [(mount["source"], mount["target"], mount["read_only"]) for mount in envoy["volumes"]]
    assert mounts == [(str(front), str(front), True)]


def test_replicas_share_the_machines_memory_and_all_logs_and_scratch_folders_have_an_end(tmp_path: Path) -> None:
    found = services(tmp_path)
    limits = [int(found[name]["mem_limit"]) for name in ("triton", "triton-2")]
    assert sum(limits) <= psutil.virtual_memory().total * 9 // 10
    for name, service in found.items():
        if "image" in service and not name.endswith("-image"):
            assert service["logging"]["options"]["max-size"], name
            assert all("size=" in place for place in service["tmpfs"]), name


def test_where_clients_spread_their_requests_no_port_is_published_twice(tmp_path: Path) -> None:
    found = services(tmp_path, "client")
    ports_of = [port["published"] for name in ("envoy", "triton", "triton-2") for port in found[name]["ports"]]
    assert len([port for port in ports_of if port != "0"]) == len({port for port in ports_of if port != "0"}) == 8
