"""What ``--log-verbose=1`` costs lab 01: the same sequences on a server with it and on one without it, in turn."""

from __future__ import annotations

import statistics
from typing import Any

from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.stack.session import Session
from labkit.client.sequences import SequenceClient, identifiers, run_sequences
from labkit.evidence.records import RequestRecord
from labkit.evidence.stats import metrics
from labkit.tables import format_table

MODEL = "ensemble_pipeline"
CLIENTS, STEPS, SEQUENCES = 4, 10, 50  # sequences of each client, one after the other
FIELDS = ("output_token_throughput", "step_ms_p50", "step_ms_p99", "log_mb")


def run(rounds: int) -> dict[str, Any]:
    """Medians over ``rounds`` servers of each kind, and their ratios."""
    session = Session.open(Silent())
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(rounds):
        for verbose, servers in found.items():
            servers.append(measure(session, verbose))
    off, on = ({field: statistics.median(one[field] for one in found[v]) for field in FIELDS} for v in (False, True))
    rows = [
        (field, f"{off[field]:,.2f}", f"{on[field]:,.2f}", f"{on[field] / off[field]:.2f}" if off[field] else "")
        for field in FIELDS
    ]
    print(f"{CLIENTS} clients, {SEQUENCES} sequences of {STEPS} requests each, medians of {rounds}")
    print(format_table(rows, ("", "quiet", "--log-verbose=1", "ratio"), right=(1, 2, 3)))
    return {"quiet": found[False], "verbose": found[True]}


def measure(session: Session, verbose: bool) -> dict[str, float]:
    """One server, warmed up by one round."""
    lab, name = session.catalog.stack("sequence")
    options = Options(set={"log_verbose": verbose}, runtime="local", ports="auto")
    with ephemeral_stack(session, lab, name, options) as handle:
        play(handle.record.endpoints.http, 1)
        log = session.workspace.folder(name).run_dir() / "triton.log"
        before = log.stat().st_size if verbose else 0
        every = [record for n in range(SEQUENCES) for record in play(handle.record.endpoints.http, 1001 + 100 * n)]
        written = log.stat().st_size - before if verbose else 0
    summary = metrics(every)
    step = summary["time_per_output_token"]
    return {
        "output_token_throughput": summary["output_token_throughput"],
        "step_ms_p50": step["p50"],
        "step_ms_p99": step["p99"],
        "log_mb": written / 1e6,
    }


def play(endpoint: str, first: int) -> list[RequestRecord]:
    """Every client one sequence, all at once."""
    ids = identifiers(CLIENTS, "uint64", first)
    records = [RequestRecord(str(id), MODEL, "I have lived in Seoul") for id in ids]
    run_sequences(lambda: SequenceClient(endpoint, MODEL), records, ids, STEPS)
    return records
