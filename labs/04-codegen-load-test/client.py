"""Lab 04's client: Locust's users in steps, for each output length, and what Triton counted meanwhile.

Run by ``labctl run codegen``, once with dynamic batching and once without. First the users ask a model that does
nothing: that is what the load generator can do, and the rest must stay below it.
"""

import sys

from locustfile import PROMPTS, CodegenGrpc, CodegenHttp, payload

from labkit.client import context, stepped
from labkit.evidence import stats
from labkit.evidence.records import Lane
from labkit.tables import format_table

GENERATOR, NOTHING = "codegen-350M-mono-gptj", "nothing"
SIDES = ("preprocessing", "postprocessing")
QUICK_STEPS = (32,)
CEILING_USERS = 32
USERS = {"http": CodegenHttp, "grpc": CodegenGrpc}
TRACE_S = 1.0  # the end of the last step that goes into the trace


def users(lab, protocols, model: str, tokens: int) -> list:
    """The user classes for these protocols, which ask ``model`` for ``tokens`` tokens."""
    hosts = {"http": f"http://{lab.endpoints['http']}", "grpc": lab.endpoints["grpc"]}
    more = {"model": model, "payloads": [payload(prompt, tokens) for prompt in PROMPTS]}
    return [type(name, (USERS[name],), {**more, "host": hosts[name]}) for name in protocols]


def steps(lab) -> list[int]:
    if lab.quick:
        return [*QUICK_STEPS]
    every, last = int(lab.settings["users_per_step"]), int(lab.settings["users"])
    return [*range(every, last, every), last]


def describe(load: stepped.SteppedLoad) -> dict:
    """A load in the form of the phase's file."""
    counted = load.counted().models
    infer = counted[GENERATOR].compute_infer_us
    return {
        "steps": [
            {
                "users": stage.users,
                "requests_per_second": stage.requests_per_second,
                "request_latency": stats.summarize(stage.latencies_ms),
                "generator": stepped.counters(stage.counters.models[GENERATOR]),
            }
            for stage in load.stages
        ],
        "seconds": load.seconds(GENERATOR),
        "models": {name: stepped.counters(row) for name, row in counted.items()},
        "shares": {name: counted[name].compute_infer_us / infer for name in SIDES},
    }


def main() -> None:
    lab = context.load_context(sys.argv[1])
    wanted = lab.settings["protocol"]
    protocols = ("http", "grpc") if wanted == "both" else (wanted,)
    warmup, seconds = float(lab.settings["warmup_seconds"]), float(lab.settings["step_seconds"])
    metrics = lab.endpoints["metrics"]

    def tell(text: str) -> None:
        print(f"  {text}", flush=True)

    print(f"\n{lab.phase}: what the load generator can do, on a model that does nothing")
    ceiling = {}
    for name in protocols:
        load = stepped.run_stepped_load(
            users(lab, [name], NOTHING, 1), [CEILING_USERS], 2.0, 1.0, metrics, 0, lambda text: None
        )
        ceiling[name] = load.stages[0].requests_per_second
        tell(f"{name}: {ceiling[name]:.0f} requests/s")

    data: dict = {"ceiling": ceiling, "lengths": {}}
    every, rows = [], []
    for tokens in lab.settings["lengths"]:
        print(f"\n{lab.phase}: {tokens} tokens, {' and '.join(protocols)} users")
        load = stepped.run_stepped_load(
            users(lab, protocols, "ensemble", tokens), steps(lab), seconds - warmup, warmup, metrics, tokens, tell
        )
        data["lengths"][str(tokens)] = describe(load)
        last = load.stages[-1]
        for stage in load.stages:
            latency, counted = stats.summarize(stage.latencies_ms), stage.counters.models[GENERATOR]
            rows.append(
                (
                    tokens,
                    stage.users,
                    f"{stage.requests_per_second:.0f}",
                    f"{latency['p50']:.0f}",
                    f"{latency['p95']:.0f}",
                    f"{counted.mean_batch:.1f}",
                    f"{counted.queue_ms:.1f}",
                    f"{counted.compute_ms:.1f}",
                )
            )
        began = last.ended - TRACE_S
        traced = Lane(
            GENERATOR,
            [record for record in load.records if began < record.start and record.end < last.ended],
            [step for step in lab.steps(GENERATOR) if began <= step.began and step.over < last.ended],
        )
        data["lengths"][str(tokens)]["trace"] = traced.to_json()
        every += load.records
    header = ("tokens", "users", "RPS", "p50 ms", "p95 ms", "mean batch", "queue ms", "compute ms")
    print("\n" + format_table(rows, header, right=range(len(header))))
    lab.finish(data, every)


if __name__ == "__main__":
    main()
