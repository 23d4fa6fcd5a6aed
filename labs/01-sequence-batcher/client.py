"""Lab 01's client: four clients with a sequence each, then the slots and rows. Run by ``labctl run sequence``."""

import sys

from labkit.client import context
from labkit.client.live import LiveView
from labkit.client.sequences import SequenceClient, identifiers, run_sequences
from labkit.evidence import slots, stats
from labkit.evidence.records import Lane, RequestRecord
from labkit.tables import format_table

MODEL = "ensemble_pipeline"
CITIES = ("London", "Paris", "Berlin", "Seoul")
ROUNDS, QUICK_ROUNDS = 40, 10  # of a timed phase: one round is too short to be measured
BATCHER = "tokenizer"  # the model with the sequence batcher


def main() -> None:
    lab = context.load_context(sys.argv[1])
    count, steps = int(lab.settings["clients"]), int(lab.settings["steps"])
    protocol, id_type = lab.settings["protocol"], lab.settings["correlation_id"]
    strategy, generator = lab.settings["strategy"], lab.settings["generator"]
    verbose = lab.settings["log_verbose"]

    def connect() -> SequenceClient:
        return SequenceClient(lab.endpoints[protocol], MODEL, protocol, id_type)

    def play(first: int, view: LiveView | None = None) -> list[RequestRecord]:
        """Play one round: every client sends one sequence, from its first request to its last."""
        ids = identifiers(count, id_type, first)
        records = [
            RequestRecord(str(id), MODEL, f"I have lived in {CITIES[n % len(CITIES)]}") for n, id in enumerate(ids)
        ]
        for record in records if view else ():
            view.watch(record)
        run_sequences(connect, records, ids, steps, view.token if view else None)
        return records

    print(f"\n{count} clients, {steps} requests each ({strategy}, {generator}, {protocol})")
    play(first=1)  # warm-up
    with LiveView(steps) as view:
        shown = play(1001, view)
    every = list(shown)
    if not verbose:
        for number in range(1, QUICK_ROUNDS if lab.quick else ROUNDS):
            every += play(1001 + 100 * number)

    own = lab.steps(BATCHER, shown)
    computed = lab.steps(f"generator_{generator}", shown)
    places = slots.executed_places(own)
    data = {
        "strategy": strategy,
        "generator": generator,
        "kept": sum(len(rows) == 1 for rows in places.values()) / len(places),
        "mean_batch": mean(step.batch for step in own),
        "mean_empty": mean(slots.execution_rows(step) - step.batch for step in own),
        "generator_mean_batch": mean(step.batch for step in computed),
        "executions": len(own),
    }
    if verbose:
        events = slots.read_slot_log(lab.run_dir / "triton.log", BATCHER)
        timeline = slots.timeline(events, [record.label for record in shown])
        data["disagreements"] = slots.disagreements(timeline, own, direct=strategy == "direct")
        data["timeline"] = slots.with_rows(timeline, own).to_json()
        data["trace"] = Lane(BATCHER, shown, own).to_json()
        show(timeline, places, data["disagreements"])
    else:
        data["metrics"] = stats.metrics(every)
        latency = data["metrics"]["inter_token_latency"]
        print(
            f"\n{data['metrics']['output_token_throughput']:.0f} tokens/s; a step takes {latency['p50']:.1f} ms (p50)"
        )
    print(
        f"mean batch {data['mean_batch']:.2f} (and {data['mean_empty']:.2f} empty rows) in {len(own)} executions; "
        f"{data['kept']:.0%} of {len(places)} sequences ({count} clients, {len(places) // count} "
        f"{'rounds' if len(places) > count else 'round'}) kept one row"
    )
    lab.finish(data, every)


def mean(values) -> float | None:
    """None for Triton's own backends (the gpu profile's generators), which write no step log."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


def show(timeline: slots.Timeline, places: dict, problems: list[str]) -> None:
    """The slots and rows of each sequence, as a table."""
    waited = {wait.id: wait.ended - wait.began for wait in timeline.waits}
    rows = [
        (
            stay.id,
            stay.instance,
            stay.slot,
            len(stay.requests),
            ", ".join(sorted({str(row) for _, row in places[stay.id]})),
            f"{(stay.began - timeline.began) * 1e3:.0f} - {(stay.ended - timeline.began) * 1e3:.0f}",
            f"{waited.get(stay.id, 0.0) * 1e3:.0f}",
        )
        for stay in timeline.stays
    ]
    header = ("sequence", "instance", "slot", "requests", "rows of the batch", "there, ms", "waited, ms")
    print("\n" + format_table(rows, header, right=(2, 3, 6)))
    print("the model's own log agrees" if not problems else "the model's own log differs: " + "; ".join(problems))


if __name__ == "__main__":
    main()
