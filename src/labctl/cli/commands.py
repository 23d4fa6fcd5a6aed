"""The commands: in which group `labctl --help` lists them, what each does, and how it is typed."""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """A command. ``module`` of labctl.cli is imported only when the command is used."""

    module: str
    summary: str
    examples: tuple[str, ...]


GROUPS: dict[str, dict[str, Listed]] = {
    "Start here": {
        "list": Listed("catalog", "List the labs, or the settings of one.", ("list", "list iterative")),
        "run": Listed(
            "run",
            "Run a whole lab: up, its clients, the verdicts, down.",
            ("run iterative --quick", "run batching --set max_num_sequences=8"),
        ),
        "learn": Listed("exercise", "Show exercises as one screen; check when you save.", ("learn", "learn iterative")),
        "exercise": Listed(
            "exercise",
            "Write the lines yourself; your running server judges.",
            (
                "exercise list iterative",
                "exercise start 02a",
                "exercise check 02a",
                "exercise solution 02a --give-up",
                "exercise verify 02a",
            ),
        ),
        "doctor": Listed("doctor", "Check this machine, and say what to do.", ("doctor", "doctor modern")),
    },
    "Serve": {
        "up": Listed(
            "stacks",
            "Bring a stack up and wait until every model answers.",
            ("up iterative", "up static-batching --set max_num_sequences=8 --ports auto"),
        ),
        "status": Listed(
            "stacks", "Show the state, endpoints and models of stacks.", ("status", "status iterative --json")
        ),
        "infer": Listed(
            "infer",
            "Get one answer from a model of a running stack.",
            ("infer iterative -p 'I have lived in' -o 8", "infer --endpoint triton:8001 -m iterative-gpt2 -p hello"),
        ),
        "shell": Listed("stacks", "Open a shell beside a running stack.", ("shell iterative",)),
        "chat": Listed("pages", "Open a chat page for a stack's text models.", ("chat codegen",)),
        "openai": Listed(
            "openai",
            "Serve the OpenAI API in front of a running stack.",
            ("openai iterative", "openai inflight-batching --port auto --json"),
        ),
        "logs": Listed("stacks", "Show the log of a stack's server.", ("logs iterative -f",)),
        "reload": Listed("edit", "Load the edited models of a running stack again.", ("reload iterative",)),
        "restart": Listed(
            "edit", "Take a stack down and up again, as it was.", ("restart iterative", "restart scaled --rolling")
        ),
        "down": Listed(
            "stacks", "Take a stack down, and check that nothing is left.", ("down iterative", "down --all")
        ),
    },
    "Observe and measure": {
        "watch": Listed("pages", "Show a stack's scheduler while it works.", ("watch iterative", "watch results/A")),
        "clock": Listed(
            "clock",
            "Stop a stack's schedulers, step them, slow them down.",
            ("clock iterative pause", "clock iterative step 3", "clock iterative run"),
        ),
        "metrics": Listed(
            "metrics", "Show Triton's counters as a table.", ("metrics codegen", "metrics codegen --follow")
        ),
        "bench": Listed(
            "bench",
            "Measure a stack under load.",
            ("bench iterative --concurrency 1,4,8", "bench inflight-batching --request-rate 4 --output bench.json"),
        ),
        "explain": Listed(
            "explain",
            "Show what the slowest requests waited for, why one waited, or where two runs part.",
            ("explain results/A", "explain results/A 417003", "explain --diff results/A results/B"),
        ),
        "predict": Listed(
            "predict",
            "Predict what other settings of the scheduler would have done.",
            ("predict results/A --set scheduling=fair", "predict results/A --set max_num_sequences=4 --run"),
        ),
        "plan": Listed(
            "predict",
            "Find the smallest setting that meets limits of latency.",
            ('plan results/A --slo "ttft<500ms,tpot<60ms" --rate 4',),
        ),
        "pace": Listed(
            "pace", "List or measure the GPUs that steps can be timed by.", ("pace list", "pace measure results/A")
        ),
        "trace": Listed(
            "trace", "Make a trace of a recording, or of another trace.", ("trace convert results/A my.csv",)
        ),
        "compare": Listed("explain", "Show results side by side, with ratios.", ("compare results/A results/B",)),
    },
    "Scale": {
        "scale": Listed(
            "edit", "Set the number of replicas of a running stack.", ("scale scaled 3", "scale scaled --auto 1:4")
        )
    },
    "Weights, engines, images": {
        "weights": Listed(
            "artifacts",
            "Pull, list and prune model weights.",
            ("weights pull codegen", "weights list", "weights prune --all"),
        ),
        "engines": Listed(
            "artifacts",
            "Install, build, list and prune engines.",
            ("engines build inflight-batching", "engines install vllm", "engines list", "engines prune --all"),
        ),
        "images": Listed(
            "artifacts",
            "Build, list and prune container images.",
            ("images list", "images build scaled", "images prune --old"),
        ),
        "render": Listed(
            "artifacts",
            "Render a stack's model repository, and start nothing.",
            ("render iterative --output repository",),
        ),
    },
    "Teach": {
        "guess": Listed("guess", "Draw a load, and let a class guess its steps.", ("guess", "guess 20")),
        "hub": Listed("hub", "Run a class on JupyterHub.", ("hub up", "hub status", "hub down")),
    },
}
COMMANDS: dict[str, Listed] = {name: listed for group in GROUPS.values() for name, listed in group.items()}
