"""Sequences that break the rules, and Triton's answers. Run by ``labctl run sequence`` in a phase of its own.

That phase keeps an idle sequence for a short time only, and has few places, so that everything happens soon.
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from labkit.client import context
from labkit.client.sequences import SequenceClient, identifiers
from labkit.errors import LabError
from labsched.log.files import open_to_read

MODEL, TEXT = "ensemble_pipeline", "I have lived in"
REMARKABLE = (
    "conflict",
    "max sequence idle exceeded",
    "backlog",
)  # lines of Triton's log about more than the usual course


def main() -> None:
    lab = context.load_context(sys.argv[1])
    protocol, id_type = lab.settings["protocol"], lab.settings["correlation_id"]
    idle = int(lab.settings["max_sequence_idle_microseconds"]) / 1e6
    places = int(lab.settings["max_candidate_sequences"]) * int(lab.settings["instances"])
    ids = identifiers(100, id_type, 5001)
    other = identifiers(1, "uint64" if id_type == "string" else "string")[0]

    with SequenceClient(lab.endpoints[protocol], MODEL, protocol, id_type) as client:

        def ask(text: str, id, **flags: bool) -> str:
            return f"answered {client.ask(text, id, **flags)!r}"

        def forgot_start(id) -> str:
            return ask(TEXT, id)

        def after_the_end(id) -> str:
            ask(TEXT, id, start=True, end=True)
            return ask(TEXT, id)

        def started_twice(id) -> str:
            ask(TEXT, id, start=True)
            return ask("Anna", id, start=True, end=True)

        def idled(id) -> str:
            ask(TEXT, id, start=True)
            time.sleep(idle * 2 + 0.5)  # Triton's reaper looks now and then
            return ask(TEXT, id)

        def too_many(id) -> str:
            for _ in range(places):
                ask(TEXT, ids.pop(), start=True)
            # Not at once: the waiting sequence would idle as long as the running ones, and be dropped like them.
            time.sleep(idle / 2)
            began = time.monotonic()
            answer = ask(TEXT, id, start=True, end=True)
            return f"{answer} after {time.monotonic() - began:.1f} s, when another had idled for {idle:g} s"

        def of_the_other_type(id) -> str:
            return ask(TEXT, other, start=True, end=True)

        trials: dict[str, Callable] = {
            "the first request has no START": forgot_start,
            "a request after END": after_the_end,
            "START again in the middle of a sequence": started_twice,
            f"nothing sent for longer than {idle:g} s": idled,
            f"{places + 1} sequences where {places} have a place": too_many,
            "a correlation id of the other type": of_the_other_type,
        }
        said = []
        for name, trial in trials.items():
            id = ids.pop(0)
            answer = outcome(trial, id)
            said.append({"what": name, "answer": answer, "log": remarks(lab.run_dir / "triton.log", id)})
    print()
    for entry in said:
        print("\n".join([entry["what"], f"    client: {entry['answer']}", *(f"    log: {t}" for t in entry["log"])]))
    lab.finish({"said": said}, [])


def outcome(trial: Callable, id: int | str) -> str:
    try:
        return trial(id)
    except LabError as error:
        return f"{error.what}: {error.why}"


def remarks(log: Path, id: int | str) -> list[str]:
    """The remarkable lines of Triton's log on one sequence."""
    about = re.compile(rf'"(?P<text>[^"]*\b(?:CORRID|sequence) {re.escape(str(id))}\b[^"]*)"')
    with open_to_read(log) as stream:
        lines = stream.read().decode(errors="replace").splitlines()
    matches = (about.search(line) for line in lines if any(word in line for word in REMARKABLE))
    return [match["text"] for match in matches if match]


if __name__ == "__main__":
    main()
