"""vLLM's scheduler with an account of each decision, and of the step that each result belongs to."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from labsched.vllm.decision import Decision, StepsInFlight, decision
from labsched.vllm.gate import Gate


class BlockIds(list[int]):
    """The ids of a request's KV blocks. `text` is it as JSON: most steps leave it as it is, or add a block."""

    @cached_property
    def text(self) -> str:
        return f"[{','.join(map(str, self))}]"

    def grown(self, ids: Sequence[int]) -> "BlockIds":
        """The table of the same request with these blocks."""
        table, here = BlockIds(ids), len(self)
        if here and "text" in vars(self) and table[:here] == self:
            more = "".join(f",{id}" for id in table[here:])
            table.text = f"{self.text[:-1]}{more}]"
        return table


EMPTY = BlockIds()


def watched_name(kind: Any, gate: Gate | None) -> str:
    """`watched_scheduler` by its name, for `EngineArgs.scheduler_cls`.

    vLLM sends its settings to the processes of its ranks, and a class that is made here could not be sent.
    """
    globals()["Watched"] = watched_scheduler(kind, gate)
    return f"{__name__}.Watched"


def watched_scheduler(kind: Any, gate: Gate | None = None) -> Any:
    """A subclass of a vLLM scheduler that reports its decisions.

    Args:
        gate: for static batching.
    """

    class Watched(kind):  # type: ignore[misc]
        """`in_flight`: the steps that are decided and computed; `landed`: the one whose result has come.

        While `grounded` no step is decided, and vLLM only waits for those in flight: it asks `has_requests` before it
        decides.
        """

        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.in_flight = StepsInFlight()
            self.landed: Decision | None = None
            self.grounded = False
            self.tables: dict[str, BlockIds] = {}  # of the last step

        def has_requests(self) -> bool:
            return not self.grounded and bool(super().has_requests())

        def schedule(self, *args: Any, **named: Any) -> Any:
            began = time.monotonic()
            schedule = partial(super().schedule, *args, **named)
            output = gate.through(self, schedule) if gate else schedule()
            decided = decision(self, output, began)
            self.tables = decided.tables = block_tables(self, output, self.tables)
            if gate and decided.waiting and (because := gate.because(self, decided.waiting[0])):
                decided.because = because
            self.in_flight.add(output, decided)
            return output

        def get_grammar_bitmask(self, output: Any, *args: Any, **named: Any) -> Any:
            began = time.monotonic()
            masks = super().get_grammar_bitmask(output, *args, **named)
            if masks is not None:
                self.in_flight.masked(output, began)
            return masks

        def update_from_output(self, output: Any, *args: Any, **named: Any) -> Any:
            self.landed = self.in_flight.take(output)
            return super().update_from_output(output, *args, **named)

    return Watched


def block_tables(scheduler: Any, output: Any, before: Mapping[str, BlockIds]) -> dict[str, BlockIds]:
    """The KV blocks of each request in a step; `before` are those of the step before it.

    A table to which nothing was added is the same object.
    """
    cached, ids = output.scheduled_cached_reqs, output.num_scheduled_tokens
    tables = dict(zip(ids, map(before.get, ids), strict=True))
    changed = [id for id, new in zip(cached.req_ids, cached.new_block_ids, strict=True) if new is not None]
    changed += [request.req_id for request in output.scheduled_new_reqs]
    if None in tables.values():
        changed += [id for id, table in tables.items() if table is None]
    table_of = scheduler.kv_cache_manager.get_block_ids
    for id in changed:
        tables[id] = before.get(id, EMPTY).grown(table_of(id)[0])
    return tables
