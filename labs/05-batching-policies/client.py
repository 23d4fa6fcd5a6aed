"""Lab 05's client: the identity test over two workloads, and the scheduler's steps meanwhile.

Run by ``labctl run batching``, once for each phase: static, in-flight, and in-flight with little memory under both
policies. The phases with little memory run half of the chat-like workload alone; there only counts are compared, so the
clock stands still until all requests have come.
"""

import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

from labkit.client import context, dataset, identity
from labkit.client.live import ProgressLine
from labkit.client.trtllm_metrics import Watch
from labkit.evidence.records import Lane
from labkit.tables import format_table

ENGINE = "tensorrt_llm"
MAX_INPUT_LEN = 1900
QUICK_REQUESTS, QUICK_ARTICLES, QUICK_SCALE = 24, 20, 0.05
SLOW, QUICK_ANSWERS = "transformers", 0.3  # its steps take 65 ms on an H100 too: with --quick, shorter answers


def workloads(lab, count_tokens) -> dict[str, list[dataset.Item]]:
    """The workloads by name; a dataset of your own replaces the article-like prompts."""
    count = QUICK_REQUESTS if lab.quick else int(lab.settings["requests"])
    small = lab.settings["max_tokens_in_paged_kv_cache"]  # which whole answers must overflow
    answers = QUICK_ANSWERS if lab.quick and lab.settings["engine"] == SLOW and not small else 1.0
    chat = {"chat": dataset.make_chats(count_tokens, count, scale=answers)}
    if small:
        return {"chat": chat["chat"][: max(QUICK_REQUESTS, count // 2)]}
    if lab.settings["dataset"]:
        items = dataset.load_dataset(Path(lab.settings["dataset"]))
        return {**chat, "dataset": items[:QUICK_REQUESTS] if lab.quick else items}
    scale = QUICK_SCALE if lab.quick else lab.settings["published_scale"]
    return {
        **chat,
        "articles": dataset.make_articles(count_tokens, QUICK_ARTICLES if lab.quick else count, scale=scale),
    }


def scheduling(steps: list) -> dict[str, float]:
    """The figures that the step log gives; none for NVIDIA's backend, which writes no step log.

    Its own metrics say the same then (``labkit.client.trtllm_metrics``).
    """
    if not steps:
        return {}
    return {
        "steps": len(steps),
        "mean_batch": sum(step.batch for step in steps) / len(steps),
        "max_batch": max(step.batch for step in steps),
        "max_kv_blocks_used": max(step.kv_blocks_used for step in steps),
        "kv_blocks": steps[0].more["kv_blocks"],
        "preemptions": sum(len(step.evicted) for step in steps),
    }


def main() -> None:
    from tokenizers import Tokenizer

    lab = context.load_context(sys.argv[1])
    tokenizer = Tokenizer.from_file(f"{lab.tokenizer_dir}/tokenizer.json")
    data: dict = {"workloads": {}}
    every, columns = [], {}

    def ids_of(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    @contextmanager
    def together(requests: int):
        lab.act("pause").done()
        yield
        lab.act("run", model=ENGINE, requests=requests).done(timeout=180)

    has_clock = lab.settings["engine"] != "tensorrt-llm"
    sending = together if has_clock and lab.settings["max_tokens_in_paged_kv_cache"] else nullcontext
    for name, items in workloads(lab, lambda text: len(ids_of(text))).items():
        requests = identity.encode(items, ids_of, MAX_INPUT_LEN)
        print(f"\n{lab.phase}, {name}: {len(requests)} requests at once", flush=True)
        watch = Watch(lab.endpoints["metrics"], ENGINE) if lab.settings["engine"] == "tensorrt-llm" else None
        with ProgressLine(name) as progress, watch or nullcontext():
            records = identity.run_identity_test(lab.endpoints["grpc"], requests, tell=progress, sending=sending)
        steps = lab.steps(ENGINE, records)
        columns[name] = identity.identity_metrics(records)
        data["workloads"][name] = {
            "table": columns[name],
            "scheduling": watch.counted(records) if watch else scheduling(steps),
            **Lane(name, records, steps).to_json(),
        }
        every += records
    rows = [(row, *(f"{columns[name][row]:,.2f}" for name in columns)) for row in identity.ROWS]
    print(format_table(rows, ("", *columns), right=range(1, len(columns) + 1)))
    identity.append_identity_csv(lab.out / "identity.csv", {f"{lab.phase}-{name}": columns[name] for name in columns})
    lab.finish(data, every)


if __name__ == "__main__":
    main()
