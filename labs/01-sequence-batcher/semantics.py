"""What a sequence may not do, and what Triton says to it. Run by ``labctl run sequence`` in a phase of its own.

That phase keeps an idle sequence for a short time only, and has few places, so that everything happens soon.
"""

import sys
import time
from collections.abc import Callable

from labctl import readiness
from labctl.errors import LabError
from labctl.measure import context, results
from labctl.measure.sequences import SequenceClient, identifiers

TEXT = "I have lived in"


def main() -> None:
    lab = context.load(sys.argv[1])
    protocol, id_type = lab.settings["protocol"], lab.settings["correlation_id"]
    idle = int(lab.settings["max_sequence_idle_microseconds"]) / 1e6
    places = int(lab.settings["max_candidate_sequences"]) * int(lab.settings["instances"])
    new = iter(identifiers(100, id_type, 5001))
    wrong = 7 if id_type == "string" else "seven"

    with SequenceClient(lab.endpoints[protocol], protocol, id_type) as client:

        def forgot_start() -> str:
            return client.ask(TEXT, next(new))

        def reused_id() -> str:
            id = next(new)
            client.ask(TEXT, id, start=True)
            return client.ask("Anna", id, start=True, end=True)

        def after_the_end() -> str:
            id = next(new)
            client.ask(TEXT, id, start=True, end=True)
            return client.ask(TEXT, id)

        def idled() -> str:
            id = next(new)
            client.ask(TEXT, id, start=True)
            time.sleep(idle * 2 + 0.5)  # Triton's reaper looks now and then
            return client.ask(TEXT, id)

        def too_many() -> str:
            for _ in range(places):
                client.ask(TEXT, next(new), start=True)
            began = time.monotonic()
            client.ask(TEXT, next(new), start=True, end=True)
            return f"answered, {time.monotonic() - began:.1f} s later: when another had idled for {idle:g} s"

        def other_type() -> str:
            return client.ask(TEXT, wrong, start=True, end=True)

        trials: dict[str, Callable[[], str]] = {
            "the first request has no START": forgot_start,
            "a request after END": after_the_end,
            "START again in the middle of a sequence": reused_id,
            f"nothing sent for longer than {idle:g} s": idled,
            f"{places + 1} sequences, where {places} have a place": too_many,
            "a correlation id of the other type": other_type,
        }
        said = {name: tell(trial) for name, trial in trials.items()}
    print()
    for name, answer in said.items():
        print(f"{name}\n    {answer}")
    data = {"triton": readiness.server_version(lab.endpoints["http"]), "said": said}
    results.write_phase(lab.out, lab.phase, data, [])


def tell(trial: Callable[[], str]) -> str:
    try:
        return f"accepted: {trial()!r}"
    except LabError as error:
        return f"refused: {error.what}: {error.why}"


if __name__ == "__main__":
    main()
