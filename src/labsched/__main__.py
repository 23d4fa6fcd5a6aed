"""`python -m labsched explain|predict|plan DIR`: the answers where nothing but this package, and perhaps vLLM, is.

`explain` also takes the URL of a vLLM's `/metrics`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from labsched.errors import LabError
from labsched.explain.result import explain_result
from labsched.markdown import markdown
from labsched.printable import allow_any_text, printable
from labsched.replay import answer, clients, player, recording
from labsched.replay.prediction import (
    plan_document,
    plan_lines,
    plan_remarks,
    prediction_document,
    prediction_remarks,
    prediction_table,
)
from labsched.replay.recording import Recording
from labsched.replay.slo import Slo
from labsched.replay.vllm_arguments import labs_names
from labsched.replay.vllm_scheduler import change_vllm_settings, replay_vllm
from labsched.vllm.metrics import WINDOW_S, explain_metrics, is_metrics_url

Document = Callable[[], object]  # for JSON
Told = Callable[[], Iterator[str]]  # the paragraphs of an answer
Command = Callable[[argparse.Namespace], tuple[Document, Told]]


def main(argv: Sequence[str] | None = None) -> int:
    """Answer about a recording in Markdown, for a terminal and for an issue. Returns the exit status."""
    asked = _parser().parse_args(argv)
    allow_any_text()
    try:
        document, told = asked.answer(asked)
        if asked.json:
            print(json.dumps(document(), indent=2))
        else:
            print("\n\n".join(map(printable, told())))
    except LabError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m labsched", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, answer: Command) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text)
        made.add_argument("result", metavar="DIR", help="the folder of LABS_RECORD, or a file in it")
        made.add_argument("--phase", metavar="NAME", help="one of its recordings; the newest if not given")
        made.add_argument("--json", action="store_true", help="print the same as one JSON document")
        made.set_defaults(answer=answer)
        return made

    explain = command("explain", "what the slowest requests waited for, and what would change it", _explain)
    explain.add_argument("--from", dest="start", metavar="TIME", help="leave out requests that came before TIME")
    explain.add_argument("--to", dest="end", metavar="TIME", help="leave out requests that came at TIME or later")
    explain.add_argument("--client", type=Path, metavar="FILE", help="join what the client saw of each request")
    explain.add_argument(
        "--window",
        type=float,
        metavar="SECONDS",
        help=f"DIR is the URL of vLLM's /metrics; {WINDOW_S:.0f} if not given",
    )
    predict = command("predict", "what other settings would have done", _predict)
    predict.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; may be repeated")
    predict.add_argument("--in-flight", type=_count, metavar="N", help="the next request comes when one of N ends")
    plan = command("plan", "the smallest setting that keeps 99 %% of the requests within limits", _plan)
    plan.add_argument("--slo", required=True, metavar="LIMITS", help='such as "ttft<500ms,tpot<60ms"')
    plan.add_argument(
        "--rate", type=_positive, required=True, metavar="R", help="requests per second, with random gaps"
    )
    return parser


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")


def _count(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")


def _explain(asked: argparse.Namespace) -> tuple[Document, Told]:
    of_recording = any((asked.phase, asked.start, asked.end, asked.client))
    if is_metrics_url(asked.result) if of_recording else asked.window is not None and not is_metrics_url(asked.result):
        raise LabError("--window is for the URL of a page, the other options for a folder", code="explain-options")
    if is_metrics_url(asked.result):
        counted = explain_metrics(asked.result, asked.window, _tell)
        return lambda: counted, lambda: iter(counted["sentences"])
    told = explain_result(
        Path(asked.result),
        asked.phase,
        asked.start,
        asked.end,
        asked.client,
        predicts=_predictor if importlib.util.find_spec("vllm") else None,
        tell=_tell,
    )
    return told.to_json, partial(told.paragraphs, markdown)


def _predict(asked: argparse.Namespace) -> tuple[Document, Told]:
    predictor = _predictor(_read(asked), asked.in_flight)
    if bad := [text for text in asked.set if text.find("=") < 1]:
        raise LabError(f"'{bad[0]}' is not KEY=VALUE", "", "--set max_num_seqs=16", code="settings-not-pairs")
    wanted = dict(text.split("=", 1) for text in asked.set)
    document = prediction_document(predictor, labs_names(predictor.recording.settings, wanted), {})

    def told() -> Iterator[str]:
        yield markdown(*prediction_table(document))
        yield from (f"{remark[0].upper()}{remark[1:]}." for remark in prediction_remarks(document))

    return lambda: document, told


def _plan(asked: argparse.Namespace) -> tuple[Document, Told]:
    predictor = _predictor(_read(asked), slo=Slo.parse(asked.slo))
    document = plan_document(predictor, asked.rate, asked.slo)

    def told() -> Iterator[str]:
        yield from plan_lines(predictor, document)
        yield from (f"{remark[0].upper()}{remark[1:]}." for remark in plan_remarks(predictor, document))

    return lambda: document, told


def _read(asked: argparse.Namespace) -> Recording:
    read = recording.read_recording(Path(asked.result), asked.phase)
    return read.in_turn(clients.sent_requests(read))


def _predictor(read: Recording, in_flight: int | None = None, slo: Slo | None = None) -> answer.Predictor:
    """What predicts from a recording: of vLLM, by vLLM's scheduler. Raises LabError: it is not here."""
    if not read.settings.vllm:
        return answer.Predictor.of(read, in_flight, slo, player.replay, tell=_tell)
    change_vllm_settings(read.settings, {})  # what cannot be replayed is refused before vLLM is imported
    if importlib.util.find_spec("vllm") is None:
        raise LabError(
            "vLLM is not installed here",
            "its own scheduler replays the requests",
            "run this in vLLM's environment",
            code="replay-needs-vllm",
        )
    return answer.Predictor.of(read, in_flight, slo, replay_vllm, changed=change_vllm_settings, tell=_tell)


def _tell(words: str) -> None:
    """Show how far it is, where a person looks on."""
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
