"""Load tools of other projects: the command that measures, their figures by our names, and what is refused by name."""

from __future__ import annotations

import functools
import json
import operator
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner
from lab_errors import lab_error
from machinery import of_its_own

from labctl.cli import bench as command_line
from labctl.cli.console import Echo
from labctl.cli.main import cli
from labctl.labs.load_tools import TOOLS, AIPerf, GuideLlm, VllmBench
from labctl.labs.tool import ABSENT, OURS, Tool, ToolLoad, names_table
from labctl.listener import Silent
from labctl.runtimes.environments import Environment
from labctl.workspace import Workspace
from labkit.workloads.bench import Workload
from labsched.slo import Slo

DATA = Path(__file__).parent / "data"
EVERY = pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
# What `labctl bench` hands on to a tool, or does itself beside it.
HANDED_ON = {"stack", "model", "dataset", "concurrency", "request_rate", "request_count", "warmup_request_count"}
HANDED_ON |= {"output_tokens", "random_seed", "slo", "client", "output", "json_output", "dry", "verbose"}
OF_UP = {"profile", "pairs", "templates", "gpu", "runtime", "ports", "timeout", "expose", "supervise"}
OF_UP |= {"client_shm", "replicas", "balance"}
OF_NO_STACK = {"endpoint", "counters"}  # of any server, which our own client measures


@pytest.fixture
def load(tmp_path: Path) -> ToolLoad:
    """Twelve requests, four in flight, of a model that answers token by token."""
    workload = Workload(["One", "Two"], output_tokens=16, requests=12, warmup=3, seed=5)
    return ToolLoad("http://127.0.0.1:9", "m", "/tokenizer", True, workload, 4, tmp_path / "prompts.jsonl", tmp_path)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the test's own and a cache that does not exist yet."""
    own = of_its_own(tmp_path)
    monkeypatch.setenv("LABS_ROOT", str(own.root))
    monkeypatch.setenv("LABS_CACHE", str(own.cache))
    return tmp_path


def made(tool: type[Tool]) -> Tool:
    return tool(Workspace(ROOT, ROOT / "no-cache"))


def recorded(tool: type[Tool], load: ToolLoad, **other: Any) -> None:
    """Put a result that the tool wrote of 12 requests into the folder, changed where ``other`` says so."""
    source = {AIPerf: "aiperf", VllmBench: "vllm_bench", GuideLlm: "guidellm"}[tool]
    document = json.loads((DATA / f"{source}.json").read_text()) | other
    (load.out / f"{'profile_export_aiperf' if tool is AIPerf else 'result'}.json").write_text(json.dumps(document))


def given(tool: Tool, load: ToolLoad) -> str:
    """The command, with the quotes and spaces of JSON left out."""
    return re.sub(r"['\"{}\[\],]|(?<=:) ", "", shlex.join(tool.command(load).argv))


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["bench", "iterative", *arguments])


# -- the command -------------------------------------------------------------------------------------------------------


@EVERY
def test_a_closed_loop_keeps_its_requests_in_flight(tool: type[Tool], load: ToolLoad) -> None:
    argv = given(made(tool), load)
    assert ("concurrency 4" in argv or "kind:concurrent streams:4" in argv) and not re.search(
        "request-rate|rate:", argv
    )


@EVERY
def test_an_open_loop_sends_at_its_rate_whatever_is_in_flight(tool: type[Tool], load: ToolLoad) -> None:
    argv = given(made(tool), replace(load, workload=replace(load.workload, rate=2.5)))
    assert ("--request-rate 2.5" in argv or "kind:poisson rate:2.5" in argv) and "concurren" not in argv


SLO = Slo(500, 60)


@pytest.mark.parametrize(
    ("tool", "changed", "words", "absent"),
    [
        (AIPerf, {}, "--request-count 12|--warmup-request-count 3|--random-seed 5|ignore_eos:true", "--goodput"),
        (AIPerf, {"warmup": 0}, "", "--warmup-request-count"),  # it refuses a zero
        (VllmBench, {}, "--num-prompts 12|--num-warmups 3|--seed 5|--custom-output-len 16|--ignore-eos", "--goodput"),
        (GuideLlm, {}, "kind:max_requests count:15|warmup:mode:requests value:3|kind:static value:5|slo:null", "tpot"),
        (GuideLlm, {"slo": SLO}, "slo:ttft_ms:500 tpot_ms:60", "null"),
    ],
)
def test_counts_seed_and_lengths_are_handed_on_in_the_names_of_the_tool(
    tool: type[Tool], changed: dict[str, Any], words: str, absent: str, load: ToolLoad
) -> None:
    argv = given(made(tool), replace(load, workload=replace(load.workload, **changed)))
    assert [word for word in words.split("|") if word not in argv] == []
    assert absent not in argv


@pytest.mark.parametrize(
    ("tool", "words"),
    [(AIPerf, ["time_to_first_token:500 inter_token_latency:60"]), (VllmBench, ["ttft:500", "tpot:60"])],
)
def test_limits_are_arguments_as_the_tool_takes_them(tool: type[Tool], words: list[str], load: ToolLoad) -> None:
    argv = list(made(tool).command(replace(load, workload=replace(load.workload, slo=SLO))).argv)
    place = argv.index("--goodput") + 1
    assert argv[place : place + len(words)] == words


def test_aiperf_asks_for_no_stream_of_a_model_that_answers_whole(load: ToolLoad) -> None:
    assert "--streaming" in made(AIPerf).command(load).argv
    assert "--streaming" not in made(AIPerf).command(replace(load, streamed=False)).argv


@EVERY
def test_the_prompts_are_one_line_for_each_request(tool: type[Tool], load: ToolLoad) -> None:
    text, tokens = tool.prompt_keys
    lines = [json.loads(line) for line in made(tool).lines(load.workload).splitlines()]
    sent = 15 if tool is GuideLlm else 12  # those that warm up stand before those that count
    assert lines == [{text: ["One", "Two"][number % 2], tokens: 16} for number in range(sent)]


# -- the result --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "theirs"),
    [
        (AIPerf, {"ttft": ("time_to_first_token", "p99"), "tpot": ("inter_token_latency", "p50")}),
        (VllmBench, {"ttft": "p99_ttft_ms", "tpot": "p50_tpot_ms"}),
        (
            GuideLlm,
            {
                "ttft": ("time_to_first_token_ms", "successful", "percentiles", "p99"),
                "tpot": ("inter_token_latency_ms", "successful", "percentiles", "p50"),
            },
        ),
    ],
)
def test_a_recorded_result_has_our_names(tool: type[Tool], theirs: dict[str, Any], load: ToolLoad) -> None:
    recorded(tool, load)
    document = json.loads(next(load.out.glob("*.json")).read_text())
    document = document["benchmarks"][0]["metrics"] if tool is GuideLlm else document

    def value(key: Any) -> float:
        return float(functools.reduce(operator.getitem, key if isinstance(key, tuple) else (key,), document))

    found = made(tool).read(load)
    absent = {OURS[column] for column, (name, _) in tool.names.items() if name == ABSENT}
    assert set(OURS.values()) - {"goodput"} - absent <= set(found) and not absent & set(found)
    assert found["time_to_first_token"]["p99"] == value(theirs["ttft"])
    assert found["time_per_output_token"]["p50"] == value(theirs["tpot"])
    assert found["output_token_throughput"] / found["request_throughput"] == pytest.approx(16)


@EVERY
def test_an_answer_that_comes_whole_has_no_figures_of_a_stream(tool: type[Tool], load: ToolLoad) -> None:
    recorded(tool, load)
    found = made(tool).read(replace(load, streamed=False))
    assert "request_latency" in found
    assert not {"time_to_first_token", "time_per_output_token", "inter_token_latency"} & set(found)


@EVERY
def test_goodput_is_read_where_limits_were_given(tool: type[Tool], load: ToolLoad) -> None:
    recorded(tool, load)
    found = made(tool).read(replace(load, workload=replace(load.workload, slo=Slo(60, 20))))
    assert 0 < found["goodput"] <= found["request_throughput"]


@pytest.mark.parametrize(
    ("tool", "failed"),
    [
        (AIPerf, {"request_count": {"avg": 10.0}}),
        (VllmBench, {"completed": 10, "failed": 2}),
        (GuideLlm, {"benchmarks": [{"metrics": {"request_totals": {"successful": 10, "total": 12}}}]}),
    ],
)
def test_a_request_that_failed_is_not_averaged_away(tool: type[Tool], failed: dict[str, Any], load: ToolLoad) -> None:
    recorded(tool, load, **failed)
    with lab_error("requests-failed", "2 of 12"):
        made(tool).read(load)


@EVERY
def test_a_result_that_is_missing_is_named(tool: type[Tool], load: ToolLoad) -> None:
    with lab_error("tool-result-missing", tool.name):
        made(tool).read(load)


@EVERY
def test_every_column_stands_beside_the_tools_own_name(tool: type[Tool]) -> None:
    head, rows = names_table(tool, goodput=True)
    assert head[1] == tool.name and [row[0] for row in rows] == list(OURS)
    assert all(row[1] and row[2] for row in rows)


# -- what is refused ---------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize(
    "option",
    [("--against-engine",), ("--rounds", "2"), ("--replica", "1"), ("--price-per-hour", "3"), ("--trace", "agents")],
)
def test_an_option_without_a_counterpart_is_refused_by_name(tool: type[Tool], option: tuple[str, ...]) -> None:
    done = bench("--client", tool.name, *option)
    assert done.exit_code == 2 and f"{tool.name} has no counterpart of {option[0]}" in done.output


def test_every_option_of_bench_is_handed_on_or_refused() -> None:
    options = {option.name for option in command_line.bench_command.params}
    assert options == HANDED_ON | OF_UP | OF_NO_STACK | set(command_line.NOT_WITH_CLIENT)
    assert list(command_line.CLIENTS) == list(TOOLS)


@pytest.mark.parametrize(
    ("stack", "tool", "code"),
    [("iterative", "vllm-bench", "layer-missing"), ("sequence-batcher", "aiperf", "text-model-none")],
)
def test_a_tool_that_is_not_installed_or_has_no_text_model_is_refused_before_a_server_starts(
    empty: Path, stack: str, tool: str, code: str
) -> None:
    with lab_error(code):
        CliRunner().invoke(cli, ["bench", stack, "--client", tool], catch_exceptions=False)


# -- the environment ---------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_environment_the_door_and_the_tool_in_that_order(empty: Path) -> None:
    done = CliRunner().invoke(
        cli,
        ["bench", "iterative", "--runtime", "local", "--client", "aiperf", "--concurrency", "4", "--dry-run", "--json"],
        catch_exceptions=False,
    )
    shown = [shlex.join(command["argv"]) for command in json.loads(done.stdout)["commands"]]
    told = ("-m venv", "aiperf.txt", "tritonserver", "-m labdoor", "aiperf profile")
    places = [next(place for place, line in enumerate(shown) if word in line) for word in told]
    assert places == sorted(places)
    assert not (empty / "cache").exists()


def test_an_environment_has_nothing_of_the_labs_own_packages(tmp_path: Path) -> None:
    for name in ("requirements", "docker", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "requirements" / "aiperf.txt").write_text("aiperf==0\n")
    script = '$LABS_PIP list --format freeze >"$(dirname "$1")/list.txt"\n'
    (tmp_path / "docker" / "install-packages.sh").write_text(script)
    found = Environment("aiperf", Workspace(tmp_path, tmp_path / "cache"))
    found.install(Silent())
    assert found.python.exists() and found.require() == found.path
    assert (tmp_path / "requirements" / "list.txt").read_text() == ""


def test_guidellms_environment_has_pytorchs_cpu_build_before_its_own_packages(empty: Path) -> None:
    dry = Echo(json_output=True)
    GuideLlm(Workspace(ROOT, empty / "cache")).prepare(dry)
    (install,) = [shlex.join(one["argv"]) for one in dry.told["commands"] if "install-packages.sh" in str(one["argv"])]
    assert install.index("torch.txt") < install.index("guidellm.txt")


def test_a_file_of_pytorchs_own_tests_for_a_newer_python_does_not_fail_an_environment(empty: Path) -> None:
    target = empty / "environment"
    for name in ("torch/testing/new.py", "tool/main.py"):
        (target / name).parent.mkdir(parents=True)
        (target / name).write_text("def f[T](): ...\n" if "testing" in name else "")
    command = Environment("guidellm", Workspace(ROOT, empty / "cache"))._compile(target)
    assert subprocess.run(command.argv, check=False).returncode == 0
    assert list((target / "tool").glob("__pycache__/main.*")) and not (target / "torch/testing/__pycache__").exists()
