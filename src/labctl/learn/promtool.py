"""Alerting rules, played on recorded series by Prometheus' own ``promtool test rules``.

https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/ has the notation of its series.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from labctl.learn.outcome import Missing, TooBusy
from labctl.runtimes import docker_engine, images, processes
from labkit.errors import LabError

PROGRAM, RULES, TESTS = "promtool", "rules.yaml", "tests.yaml"
IMAGE = "prom/prometheus:v2.53.5"  # as in compose.yaml
SECONDS = 120.0  # the image may have to be pulled
INSTALL = (
    "apt-get install prometheus (Debian, Ubuntu), or a Docker engine with Prometheus' image (LABS_PROMETHEUS_IMAGE)"
)
# An expectation that does not hold, and an expression that gave no result at one moment.
GOT = re.compile(r'got:\s*\{recording="(\d+)"\} (\S+)')
ERROR = re.compile(r"rule: .*, err: (.*)")


def first_firings(
    rules: Path, recordings: Sequence[Mapping[str, str]], every: int, begin: int, end: int
) -> list[float | None]:
    """When the first alert fires in each recording, in seconds since its beginning; None where none fires.

    Args:
        recordings: of each series the values, in promtool's notation.
        every: seconds between two values, and between two evaluations.
        begin: seconds; an alert that has fired before counts if it still fires then.
        end: seconds; the length of a recording.

    Raises:
        Missing: this machine has no promtool.
        TooBusy: promtool, which takes a moment, has not ended.
        LabError: promtool cannot read or evaluate the rules; with its words.
    """
    # Nothing is expected to fire: so promtool shows what does, and its time.
    first = f'min(min_over_time(timestamp(ALERTS{{alertstate="firing"}})[{end - begin}s:{every}s]))'
    tests = [
        {
            "interval": f"{every}s",
            "input_series": [{"series": name, "values": values} for name, values in recording.items()],
            "promql_expr_test": [
                {
                    "expr": f'label_replace({first}, "recording", "{number}", "", "")',
                    "eval_time": f"{end}s",
                    "exp_samples": [],
                }
            ],
        }
        for number, recording in enumerate(recordings)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the image's user is another
        shutil.copyfile(rules, folder / RULES)
        test = {"rule_files": [RULES], "evaluation_interval": f"{every}s", "tests": tests}
        (folder / TESTS).write_text(yaml.safe_dump(test), encoding="utf-8")
        code, said = _run(folder, "check", "rules", RULES)
        if code:
            raise LabError("promtool cannot read the rules", _last_words(said), code="rules-unreadable")
        code, said = _run(folder, "test", "rules", TESTS)
    found = {int(number): float(time) for number, time in GOT.findall(said)}
    if (error := ERROR.search(said)) or (code and not found):
        raise LabError(
            "promtool cannot evaluate the rules", error[1] if error else _last_words(said), code="rules-invalid"
        )
    return [found.get(number) for number in range(len(recordings))]


def _run(folder: Path, *words: str) -> tuple[int, str]:
    """Promtool's exit status and all that it said, in that folder. Raises Missing, TooBusy."""
    if shutil.which(PROGRAM) is None:
        code, said = _run_in_container(folder, words)
    elif ended := processes.run_short([PROGRAM, *words], cwd=folder, seconds=SECONDS):
        code, said = ended.code, ended.out + ended.err
    else:
        code, said = None, ""
    if code is None:
        raise TooBusy(f"promtool has not ended within {SECONDS:g} s")
    return code, said


def _run_in_container(folder: Path, words: Sequence[str]) -> tuple[int | None, str]:
    """Do :func:`_run` in Prometheus' image, which is pulled if it is not here. Raises Missing.

    Returns:
        Its exit status (None: it has not ended within SECONDS), and all that it said.
    """
    image = os.environ.get("LABS_PROMETHEUS_IMAGE", IMAGE)
    deadline = time.monotonic() + SECONDS
    mounts = {str(folder): {"bind": "/work", "mode": "ro"}}
    try:
        with docker_engine.engine_failures(f"running {image}"):
            if not images.exists(image):
                for _ in docker_engine.engine().api.pull(image, stream=True):
                    if time.monotonic() > deadline:
                        return None, ""
            left = deadline - time.monotonic()
            with docker_engine.ended_container(
                image, words, left, entrypoint=PROGRAM, volumes=mounts, working_dir="/work"
            ) as (container, code):
                return code, container.logs().decode(errors="replace")
    except LabError as error:
        raise Missing(
            "this check needs Prometheus' promtool",
            f"it is not installed, and {error.what}" + (f": {error.why}" if error.why else ""),
            INSTALL,
            code="promtool-missing",
        ) from error


def _last_words(said: str) -> str:
    """What follows ``FAILED:``, as one line."""
    return " ".join(said.rpartition("FAILED:")[2].split())
