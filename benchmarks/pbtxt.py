"""Where our reader of config.pbtxt and Triton's own disagree: generated text protos, with both as judges.

A real Triton 2.51 loads each text as a model's configuration; its verdict is whether it could read it, whatever it
thinks of the model. What is found here goes into a table of tests/unit/labctl/manifest/test_config_verdicts.py.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labctl.repository.config import parse_config
from labctl.runtimes import bare
from labctl.stack import ports
from labctl.triton import readiness, server_api
from labctl.workspace import Workspace
from labkit.disk import cache_folder
from labkit.errors import LabError
from labkit.waiting import attempts

COUNT, READY_S, LOAD_S, LOG_S, LOOK_S, SHOWN = 5_000, 60.0, 30.0, 5.0, 0.002, 40
UNREAD = "failed to poll from model repository"
Judge = Callable[[str], str]  # what Triton says against a text; "" if it can read it


def mostly(good: str, odd: Sequence[str], odds: int = 60) -> st.SearchStrategy[str]:
    """One of the words of ``good``, and once in ``odds`` draws one of ``odd``: a text with one oddity shows most."""
    usual = good.split(" ")
    return st.sampled_from(usual * (odds // len(usual) + 1) + list(odd) * max(1, len(usual) // odds))


def one(words: str) -> list[str]:
    return words.split()


# What a text proto's tokens may be: as people write them, and otherwise.
SPACE = st.sampled_from(
    [" "] * 300
    + [
        *"\n\t\r\f\v\0\1\x1c\x85\xa0\u2003\u200b\ufeff\u3000;,.",
        "\r\n",
        "",
        " # c\n",
        "#\n",
        "# \xa0\n",
        "# \0\n",
        "//x\n",
    ]
)
EDGES = one(
    "08 010 0x1F 0X1f -0x1 "
    " 0x 0xg +1 --1 1.0 1. .5 1e3 1f 1F 1u 1L 1_000 true TYPE_FP32 inf nan 'a' \"1\" 00 -0 -00 -010 "
    "2147483647 2147483648 -2147483648 -2147483649 4294967295 4294967296 9223372036854775807 9223372036854775808 "
    "-9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616 037777777777 040000000000 "
    "0b1 0o7 1e-3 \u0663 1a 1- 1.. 0xFFFFFFFF 0x7fffffff 0x80000000 - ~1"
)
APART = ["- 1", "-\n1", "-#c\n1", "-\t1", "- -1", "-\xa01", ""]
WHOLE = mostly("0 1 2 8 16", EDGES + APART)
REAL = mostly(
    "1 0.5 1.5 -1",
    EDGES
    + APART
    + one(
        "1.5f 1.5F 1e400 "
        "-1e400 1e+3 1e 1.e5 .e5 inf infinity -inf -infinity INF Infinity NaN nan -nan nanf inff 10f 10F"
    )
    + one("1.5.5 1..5 0.1e1f 0x1p3 -.5 +.5 infinity_ 1e5f 1ef 1.f f -f 1e-400")
    + ["- inf", "- 1.5", "- nan"],
)
BOOL = mostly(
    "true false", [*one("True False TRUE t f T F 0 1 2 00 01 0x1 010 -1 1.0 yes 'true' on"), "- 0", "", "- 1"]
)
ENUM = mostly(
    "TYPE_FP32 TYPE_INT64",
    [*one("11 0x1 013 999 -1 type_fp32 FP32 'TYPE_FP32' TYPE_NEW [TYPE_FP32] 4294967296 1.0"), "- 1"],
)
INSIDE = st.sampled_from(
    ["a", "b", "c"] * 40
    + one(
        "\\n \\\\ \\' \\\" \\? \\a \\b \\f \\v \\r \\t \\0 \\07 \\377 \\400 \\777 \\8 \\x \\x4 "
        "\\x41 \\xG \\X41 \\x414 \\u"
    )
    + one(
        "\\u00e9 \\u12 \\ud800 \\U0001F600 \\U00110000 \\U1 \\d \\. \\s \\N{DIGIT ONE} \\e \\w "
        "\\ud83d\\ude00 \\xff \\xc3\\xa9"
    )
    + [
        "\\ ",
        "\\\n",
        "\n",
        "\r",
        "\\\u00e9",
        "\u00e9",
        "\xa0",
        "'",
        '"',
        "{",
        "#",
        "\0",
        "\1",
        "\t",
        "$$",
        "${x}",
        "%",
        "\ufeff",
        "\U0001f600",
        "\\",
    ]
)
LITERAL = st.builds(
    lambda before, quote, inside, whole: before + quote + "".join(inside) + (quote if whole else ""),
    mostly(" ".join([""] * 5), one("r b u f _")),
    st.sampled_from(["'", '"']),
    st.lists(INSIDE, max_size=3),
    st.sampled_from([True] * 60 + [False]),
)
WORDS = st.builds(
    lambda first, more, odd: odd or first + more,
    LITERAL,
    st.one_of(*[st.just("")] * 4, st.builds(lambda by, second: by + second, SPACE, LITERAL)),
    st.sampled_from([""] * 60 + ["abc", "1", "a.b", "\u201ca\u201d", "True"]),
)
NAME_END = mostly(" ".join([":"] * 5), ["", "::", "=", " :", "->", "\xa0:", "#c\n:", "\n:"])
OPENED = mostly(" ".join(["", ":"] * 3), ["::", "=", "\n:", " "])
ENDED = mostly("\n ; \n \n , ".strip(), [";;", ",;", ",,", "", ".", "}", ", ;", "#c", "#c\n", "\0"])
BRACES = st.sampled_from(
    [("{", "}")] * 60
    + [("<", ">")] * 4
    + [("{", ">"), ("<", "}"), ("{", ""), ("(", ")"), ("", "}"), ("{{", "}}"), ("{", "}}"), ("{;", "}"), ("{,", "}")]
)


def lists(item: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    between = mostly(" ".join([","] * 3), [" ", ";", ",,", "\xa0,", ", ", ",\n", ",#c\n"])
    end = mostly(" ".join([""] * 3), [",", ";", ", "])
    listed = st.builds(
        lambda items, by, end, a: f"[{a}{by.join(items)}{end}]", st.lists(item, max_size=3), between, end, SPACE
    )
    return st.one_of(item, listed)


def blocks(*fields: st.SearchStrategy[str], most: int = 3) -> st.SearchStrategy[str]:
    inside = st.lists(st.one_of(*fields), max_size=most).map("".join) if fields else st.just("")
    return st.builds(lambda pair, a, i, b: pair[0] + a + i + b + pair[1], BRACES, SPACE, inside, SPACE)


def field(name: str, value: st.SearchStrategy[str], colon: st.SearchStrategy[str] = NAME_END) -> st.SearchStrategy[str]:
    """``name`` may be several words: one of them."""
    names = st.sampled_from(name.split())
    return st.builds(lambda n, c, b, v, e: n + c + b + v + e, names, colon, SPACE, value, ENDED)


def part(name: str, *fields: st.SearchStrategy[str], listed: bool = False) -> st.SearchStrategy[str]:
    """A field whose value is a message."""
    return field(name, lists(blocks(*fields)) if listed else blocks(*fields), OPENED)


KEY, STRINGS = field("key", WORDS), field("key value", WORDS)
FIELDS = st.one_of(
    field("name platform backend runtime", WORDS),
    field("max_batch_size", WHOLE),
    part(
        "input output",
        field("name", WORDS),
        field("data_type", ENUM),
        field("dims", lists(WHOLE)),
        part("reshape", field("shape", lists(WHOLE))),
        field("optional is_shape_tensor", BOOL),
        listed=True,
    ),
    part("parameters", KEY, part("value", field("string_value", WORDS)), listed=True),
    part("metric_tags", STRINGS, listed=True),
    part(
        "instance_group",
        field("count", WHOLE),
        field("kind", mostly("KIND_CPU KIND_AUTO", one("1 99 KIND_NEW -1 kind_cpu"))),
        field("gpus", lists(WHOLE)),
        field("passive", BOOL),
        field("profile", lists(WORDS)),
        listed=True,
    ),
    part(
        "dynamic_batching sequence_batching",
        field("max_queue_delay_microseconds max_sequence_idle_microseconds", WHOLE),
        field("preferred_batch_size", lists(WHOLE)),
        field("preserve_ordering", BOOL),
        part("oldest", field("max_candidate_sequences", WHOLE)),
        part("direct", field("minimum_slot_utilization", REAL)),
        part("priority_queue_policy", field("key", WHOLE), part("value", field("max_queue_size", WHOLE)), listed=True),
    ),
    part(
        "ensemble_scheduling",
        part(
            "step", field("model_name", WORDS), field("model_version", WHOLE), part("input_map", STRINGS), listed=True
        ),
    ),
    part("model_transaction_policy", field("decoupled", BOOL)),
    part("model_warmup", field("name", WORDS), field("batch_size count", WHOLE), listed=True),
    part(
        "version_policy",
        part("latest", field("num_versions", WHOLE)),
        part("all"),
        part("specific", field("versions", lists(WHOLE))),
    ),
    part(
        "optimization",
        field("priority", mostly("PRIORITY_MAX", one("1 9 PRIORITY_NEW"))),
        part("cuda", field("graphs", BOOL)),
        field("eager_batching", BOOL),
    ),
    part("response_cache", field("enable", BOOL)),
    field(
        "Name NAME name_ 1 max-batch-size model_metrics [a.b] [a.b/c.D] __x a.b na\u00efve 'name' "
        "inf backend\u200b \u0430",
        st.one_of(WORDS, WHOLE),
    ),
    part("Input model_metrics [a.b] [type.googleapis.com/inference.ModelConfig] ModelInput reserved"),
)
SEVERAL = st.lists(FIELDS, min_size=1, max_size=3).map("".join)
BEGINNING = mostly(" ".join([""] * 5), ["\ufeff", "\n", "# c\n", "#", "{", "\xa0", "\0"])
END = mostly(" ".join([""] * 5), ["}", "#", "\x1a", "\0", "# \u00e9", "\ufeff"])
PROTOS = st.builds(lambda begin, fields, end: begin + fields + end, BEGINNING, SEVERAL, END)


@contextlib.contextmanager
def server(arguments: Sequence[str] = ()) -> Iterator[tuple[Path, str, Path]]:
    """A server without a model: its repository, its HTTP endpoint and its log."""
    with tempfile.TemporaryDirectory(prefix="labs-pbtxt-") as name:
        folder = Path(name)
        (folder / "repository").mkdir()
        (endpoints,) = ports.free_endpoints(1)
        own = Workspace(folder, cache_folder())
        with bare.local(own, "pbtxt", folder, endpoints, ["--load-model=none", *arguments]) as started:
            deadline = time.monotonic() + READY_S
            while not server_api.is_live(endpoints.http):
                if started.ended() or time.monotonic() > deadline:
                    last = started.log().splitlines()[-5:]
                    raise LabError("the judge did not come up", started.ended(), "", details=last, code="judge-not-up")
                time.sleep(0.05)
            yield folder / "repository", endpoints.http, folder / "server.log"


@contextlib.contextmanager
def triton() -> Iterator[Judge]:
    """A server that is asked to load each text as a model of its own."""
    numbers = itertools.count()
    with server() as (repository, http, path), path.open(encoding="utf-8", errors="replace") as log:

        def judge(text: str) -> str:
            model = f"m{next(numbers)}"
            (repository / model / "1").mkdir(parents=True)
            (repository / model / "config.pbtxt").write_bytes(text.encode("utf-8", "surrogatepass"))
            answer = server_api.call_triton(http, "POST", f"/v2/repository/models/{model}/load", {}, LOAD_S)[1]
            if UNREAD not in server_api.triton_message(answer):
                return ""
            said = ""
            for _ in attempts(LOG_S, LOOK_S):
                said += log.read()
                if f"'{model}': " in said.rpartition("\n")[0]:
                    break
            why = readiness.refusals(said.splitlines())[model]
            return why if "config.pbtxt" in why else ""

        yield judge


def difference(judge: Judge, text: str) -> tuple[str, str]:
    """What only we say against a text, and what only Triton says; both "" if they agree."""
    _, problems = parse_config("m/config.pbtxt", text)
    ours, theirs = "; ".join(problem.text for problem in problems), judge(text)
    return ("", "") if bool(ours) == bool(theirs) else (ours, theirs)


def search(judge: Judge, count: int, draw: st.SearchStrategy[str]) -> dict[tuple[str, str], str]:
    """The shortest text for each kind of difference, by the words of both."""
    found: dict[tuple[str, str], str] = {}

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(text=draw)
    def look(text: str) -> None:
        ours, theirs = difference(judge, text)
        if ours or theirs:
            kind = (_kind(ours), _kind(theirs))
            found[kind] = min(found.get(kind, text), text, key=len)

    look()
    return found


def _kind(words: str) -> str:
    """Words without what is the text's own."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "_", words.rpartition("column ")[2])[:100]


def run(count: int = COUNT) -> dict[str, Any]:
    """Judge that many texts; each kind of difference with its shortest text."""
    with triton() as judge:
        found = search(judge, count, PROTOS)
    result = {
        "texts": count,
        "differences": [
            {"ours": ours, "triton": theirs, "text": text} for (ours, theirs), text in sorted(found.items())
        ],
    }
    print(describe(result))
    return result


def describe(result: dict[str, Any]) -> str:
    lines = [f"{result['texts']:,} texts, {len(result['differences'])} kinds of difference"]
    for one in result["differences"][:SHOWN]:
        lines += [f"ours: {one['ours']!r}  Triton: {one['triton']!r}", f"    {one['text']!r}"]
    return "\n".join(lines)
