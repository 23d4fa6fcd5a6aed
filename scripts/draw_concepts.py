"""Draw the concepts of the lessons: scripts/draw_concepts.py [FOLDER]

Writes docs/images/concept-*.png, or the same files into FOLDER. Each schedule is what the labs' scheduler decides on an
engine that only counts (concept_schedules.py), so a drawing cannot show what the scheduler would not do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from zlib import crc32

from concept_canvas import COLORS, GREY, INK, PAPER, RED, Canvas
from concept_schedules import (
    Step,
    chunks,
    inflight_batching,
    loop_in_model,
    loop_in_triton,
    prefix_tree,
    promised_blocks,
    static_batching,
)
from labsched.policy import Policy

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SLOTS, BLOCKS = 4, 8


def strip(canvas: Canvas, y: float, steps: list[Step], width: float = 48, left: float = 110) -> None:
    """Slots by steps, the queue below, and the number of each step."""
    for slot in range(SLOTS):
        canvas.text(left - 12, y + 30 * slot + 13, f"slot {slot + 1}", 11, fill=GREY, anchor="rm")
        for at, step in enumerate(steps):
            box = (left + width * at, y + 30 * slot, left + width * at + width - 3, y + 30 * slot + 27)
            part = next((share for share in step.shares if share.slot == slot), None)
            if part:
                canvas.cell(box, part.name, part.prefill, part.last)
            else:
                canvas.empty(box)
    canvas.text(left - 12, y + 30 * SLOTS + 10, "waiting", 11, fill=GREY, anchor="rm")
    canvas.text(left - 12, y + 30 * SLOTS + 30, "step", 11, fill=GREY, anchor="rm")
    for at, step in enumerate(steps):
        canvas.queued(left + width * at + (width - 3 - 18 * len(step.waiting)) / 2, y + 30 * SLOTS + 2, step.waiting)
        canvas.text(left + width * (at + 0.5) - 1, y + 30 * SLOTS + 30, str(at + 1), 11, fill=GREY, anchor="mm")


def static_vs_inflight() -> Canvas:
    static, inflight = static_batching(), inflight_batching()
    canvas = Canvas(520)
    canvas.heading(
        20,
        12,
        f"Static batching: {len(static)} steps",
        "A batch runs until its longest answer (C) is done. Slots that finish early stay empty.",
    )
    strip(canvas, 62, static)
    joins = {
        share.name: (at + 1, share.slot + 1)
        for at, step in enumerate(inflight)
        for share in step.shares
        if share.prefill
    }
    (step_e, slot_e), (step_f, slot_f) = joins["E"], joins["F"]
    canvas.heading(
        20,
        246,
        f"In-flight (continuous) batching: {len(inflight)} steps",
        f"Free slots are filled before every step: E takes slot {slot_e} at step {step_e}, "
        f"F takes slot {slot_f} at step {step_f}.",
    )
    strip(canvas, 296, inflight)
    canvas.legend(488, ["prefill", "decode", "last", "empty"])
    return canvas


def where_the_loop_lives() -> Canvas:
    canvas = Canvas(470)
    for left, title, said, steps, inside in (
        (20, "simple-gpt2: the loop is in the model", "execute() returns when the batch is done.", loop_in_model(), 1),
        (515, "iterative-gpt2: the loop is in Triton", "execute() makes one token and returns.", loop_in_triton(), 0),
    ):
        canvas.heading(left, 12, title, said)
        canvas.text(left + 90, 66, "Triton's queue", 12, bold=True, anchor="ma")
        canvas.text(left + 330, 66, "model.py", 12, bold=True, anchor="ma")
        canvas.line([(left + 90, 86), (left + 90, 440)], "#dddddd")
        canvas.line([(left + 330, 86), (left + 330, 440)], "#dddddd")
        batch: list[str] = []
        y = 96.0
        for at, step in enumerate(steps):
            names = [share.name for share in step.shares]
            new_call = not inside or not batch or names[0] != batch[0]
            if new_call:
                canvas.arrow((left + 96, y + 8), (left + 250, y + 8))
                canvas.text(left + 173, y - 2, f"execute({', '.join(names)})", 10, fill=GREY, anchor="mm")
            if step.waiting:
                canvas.queued(left + 60 - 18 * len(step.waiting), y + 8, step.waiting)
                canvas.text(left + 30, y + 28, "waits", 9, fill=RED, anchor="ma")
            for row, share in enumerate(step.shares):
                box = (left + 256 + 76 * row, y, left + 256 + 76 * row + 72, y + 26)
                canvas.cell(box, share.name, share.prefill, share.last, f"{share.name} token")
            if new_call and inside:
                calls = sum(share.name == names[0] for later in steps for share in later.shares)
                canvas.rectangle((left + 250, y - 6, left + 418, y + 46 * calls - 12), None, "#888888", 1)
                canvas.text(left + 336, y + 7, "while batch:", 11, fill=GREY)
            done = at + 1 == len(steps) or (inside and steps[at + 1].shares[0].name != names[0])
            if done or not inside:
                more = [share.name for share in step.shares if not share.last]
                canvas.arrow((left + 250, y + 34), (left + 96, y + 34), GREY)
                answer = f"reschedule {', '.join(more)}" if more else "return"
                canvas.text(left + 173, y + 26, answer, 10, fill=GREY, anchor="mm")
            batch = names
            y += 46 if inside else 66
    canvas.legend(446, ["prefill", "decode", "last"])
    return canvas


def request_path() -> Canvas:
    canvas = Canvas(330)
    canvas.heading(20, 12, "A request's way through Triton", "The labs that change a part are below it.")
    parts = [
        ("client", ["sends text", "reads tokens"], ["01a  03b", "07a"], 20, 110),
        ("balancer", ["Envoy, only with", "--replicas"], ["lab 07"], 160, 130),
        ("front end", ["HTTP 8000", "gRPC 8001"], [""], 335, 110),
        ("scheduler", ["queue, batcher:", "forms a batch"], ["01 sequences", "02 iterative", "04 dynamic"], 475, 140),
        ("instance", ["model.py in a", "process of its own"], ["02  03  04"], 645, 140),
        ("engine", ["its own scheduler,", "KV cache, weights"], ["03  05  06"], 815, 150),
    ]
    canvas.rectangle((320, 72, 980, 214), PAPER, "#cccccc")
    canvas.text(332, 80, "tritonserver", 11, bold=True, fill=GREY)
    ends = []
    for name, lines, labs, left, width in parts:
        color = COLORS["A"] if name in ("scheduler", "engine") else INK
        canvas.box((left, 104, left + width, 184), name, lines, color)
        ends.append((left, left + width))
        for number, lab in enumerate(labs):
            canvas.text(left + width / 2, 224 + 16 * number, lab, 11, bold=True, fill=COLORS["F"], anchor="ma")
    for (_, start), (end, _) in pairwise(ends):
        canvas.arrow((start + 1, 134), (end - 1, 134))
        canvas.arrow((end - 1, 164), (start + 1, 164), COLORS["C"])
    canvas.text(20, 284, "black: the request", 11)
    canvas.text(160, 284, "green: its answer, token by token where the model is decoupled", 11, fill=COLORS["C"])
    canvas.text(20, 304, "blue: the two places where a schedule is made", 11, fill=COLORS["A"])
    return canvas


def kv_blocks() -> Canvas:
    canvas = Canvas(566)
    y = 12.0
    for policy, said in (
        (Policy.GUARANTEED_NO_EVICT, "C waits: A and B are promised all 8 blocks, half of them not in use yet."),
        (Policy.MAX_UTILIZATION, "C joins at once. When blocks run out it is preempted (x), and computed again later."),
    ):
        steps = promised_blocks(policy)
        canvas.heading(20, y, f"{policy.value}: {len(steps)} steps", said)
        top, left, width = y + 62, 110, 48
        canvas.text(left - 12, top + 8 * 17 / 2, "8 blocks", 11, fill=GREY, anchor="rm")
        for at, step in enumerate(steps):
            marks = [(share.name, n < share.in_use) for share in step.shares for n in range(share.promised)]
            for block in range(BLOCKS):
                row = top + 17 * (BLOCKS - 1 - block)
                box = (left + width * at, row, left + width * at + width - 3, row + 15)
                if block >= len(marks):
                    canvas.empty(box)
                elif marks[block][1]:
                    canvas.cell(box, marks[block][0])
                else:
                    canvas.promised(box, marks[block][0])
            middle = left + width * (at + 0.5) - 1
            if step.evicted:
                canvas.text(middle, top - 9, f"x {step.evicted[0]}", 12, bold=True, fill=RED, anchor="mm")
            canvas.queued(middle - 8, top + 140, step.waiting)
            canvas.text(middle, top + 168, str(at + 1), 11, fill=GREY, anchor="mm")
        canvas.text(left - 12, top + 148, "waiting", 11, fill=GREY, anchor="rm")
        canvas.text(left - 12, top + 168, "step", 11, fill=GREY, anchor="rm")
        y += 262
    canvas.legend(538, ["used", "promised", "free"])
    return canvas


def chunked_prefill() -> Canvas:
    canvas = Canvas(390)
    y = 12.0
    for budget, said in (
        (64, "The prompt of F (24 tokens) is one step. A waits for all of it."),
        (8, "F goes in pieces, one beside each token of A. A's gap is shorter; F's first token comes later."),
    ):
        steps = chunks(budget)
        canvas.heading(20, y, f"max_num_tokens={budget}", said)
        x, unit, top = 110.0, 21.0, y + 84
        canvas.text(98, top + 13, "A, the reader", 11, fill=GREY, anchor="rm")
        canvas.text(98, top + 43, "F, the prompt", 11, fill=GREY, anchor="rm")
        gaps = []
        for step in steps:
            width = unit * sum(share.tokens for share in step.shares)
            for share in step.shares:
                row = top + (30 if share.name == "F" else 0)
                label = str(share.tokens) if share.name == "F" and share.prefill else " "
                canvas.cell((x, row, x + width - 2, row + 27), share.name, share.prefill, share.last, label)
            if any(share.name == "A" for share in step.shares):
                gaps.append((width, x))
            x += width
        width, at = max(gaps)
        canvas.line([(at, top - 6), (at, top - 12), (at + width - 2, top - 12), (at + width - 2, top - 6)], RED)
        canvas.text(
            at + width / 2, top - 22, f"A's longest gap: {width / unit:.0f} tokens of work", 11, fill=RED, anchor="mm"
        )
        y += 172
    canvas.text(
        20, 362, "The width of a step is the tokens that it computes; numbers are tokens of the prompt.", 11, fill=GREY
    )
    return canvas


def prefix_tree_drawing() -> Canvas:
    canvas = Canvas(330)
    requests = prefix_tree()
    shared = sum(found.tokens for found in requests)
    every = sum(found.prompt for found in requests)
    canvas.heading(
        20,
        12,
        "A prefix tree: prompts that begin alike share blocks",
        f"{shared} of {every} prompt tokens are found in the cache, and not computed again.",
    )
    places: dict[int, tuple[float, float]] = {}
    for row, found in enumerate(requests):
        y = 78.0 + 58 * row
        previous = (80.0, 78.0 + 58 * row + 16)
        for depth, block in enumerate(found.blocks):
            if block not in places:
                places[block] = (160.0 + 170 * depth, y)
                x, top = places[block]
                if depth == 0:
                    canvas.arrow((96, top + 16), (x - 4, top + 16), GREY)
                else:
                    canvas.arrow(previous, (x - 4, top + 16), GREY)
                canvas.cell((x, top, x + 120, top + 32), found.name, prefill=False, label=f"block {block + 1}")
            previous = (places[block][0] + 122, places[block][1] + 16)
        canvas.queued(690, y + 8, [found.name])
        canvas.line([previous, (685, y + 16)], "#cccccc", 1)
        said = f"{found.tokens} of {found.prompt} tokens found" if found.tokens else "nothing found: computed whole"
        canvas.text(716, y + 16, said, 11.5, anchor="lm")
    canvas.text(
        20,
        306,
        "A block has 4 tokens. Its colour is that of the request that computed it. A prompt's last, "
        "partly full block is its own.",
        11,
        fill=GREY,
    )
    return canvas


def balancing() -> Canvas:
    canvas = Canvas(330)
    canvas.heading(
        20,
        12,
        "Which replica answers?",
        "One gRPC client, one connection, six requests: two of each of the sequences A, B and C.",
    )
    requests = ["A", "B", "A", "C", "B", "C"]
    targets: dict[str, tuple[Callable[[int, str], int], list[str]]] = {
        "l4": (lambda number, name: 0, ["spreads connections:", "one connection, one replica"]),
        "l7": (lambda number, name: number % 2, ["spreads requests:", "a sequence is torn apart"]),
        "hash": (
            lambda number, name: crc32(name.encode()) // 3 % 2,
            ["spreads by x-sequence-id:", "a sequence stays whole"],
        ),
        "client": (lambda number, name: number % 2, ["the client spreads:", "no balancer in between"]),
    }
    for column, (word, (replica_of, lines)) in enumerate(targets.items()):
        left = 20.0 + 245 * column
        canvas.text(left + 105, 74, word, 15, bold=True, anchor="ma")
        canvas.box((left, 150, left + 52, 190), "client", [])
        if word != "client":
            canvas.box((left + 75, 150, left + 130, 190), "Envoy", [])
            canvas.arrow((left + 52, 170), (left + 74, 170))
        start = left + (52 if word == "client" else 130)
        for replica in (0, 1):
            top = 104.0 + 88 * replica
            canvas.box((left + 160, top, left + 225, top + 62), f"{replica + 1}", [])
            served = [name for number, name in enumerate(requests) if replica_of(number, name) == replica]
            canvas.arrow((start, 170), (left + 158, top + 31), INK if served else "#cccccc")
            for number, name in enumerate(served):
                canvas.queued(left + 166 + 18 * (number % 3), top + 25 + 18 * (number // 3), [name])
        for number, line in enumerate(lines):
            canvas.text(left + 112, 268 + 17 * number, line, 11, fill=GREY, anchor="ma")
    return canvas


DRAWINGS = {
    "static-vs-inflight": static_vs_inflight,
    "loop": where_the_loop_lives,
    "request-path": request_path,
    "kv-blocks": kv_blocks,
    "chunked-prefill": chunked_prefill,
    "prefix-tree": prefix_tree_drawing,
    "balancing": balancing,
}


def main(folder: Path) -> None:
    for name, draw in DRAWINGS.items():
        draw().save(folder / f"concept-{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
