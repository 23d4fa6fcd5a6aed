"""The learner's alerts on recordings of two replicas: which fire although all is well, and which fire too late.

Prometheus' own `promtool test rules` evaluates them.
"""

import re
import runpy
from pathlib import Path

import yaml

OUTAGES = runpy.run_path(str(Path(__file__).with_name("outages.py")))
HEALTHY, SICK, SCRAPE_S, LENGTH_S = (OUTAGES[name] for name in ("HEALTHY", "SICK", "SCRAPE_S", "LENGTH_S"))
MODEL, EACH = "waits", 2  # recordings of each kind
WARM_S, LATEST_S = 300, 300  # until alerts count; from the fault to the alert
OWN = re.compile(r"\b(?:nv|labs)_\w+")  # the metrics of Triton and of the labs' models
FALSE = {
    "a quiet night": "an alert fired in a night without requests: no traffic is not a fault.",
    "a restart": "an alert fired at a restart: a server that is back within a minute needs no help.",
    "a burst": "an alert fired at a burst: a queue that is gone within two minutes needs no help.",
    "stray failures": "an alert fired for one failed request among hundreds: which share of the requests failed?",
    "a busy day": "an alert fired on a busy day: many requests that are served in time are not a fault.",
}
ORDINARY = "an alert fired on an ordinary day: a counter only grows, so what it showed once it shows for ever."
RESET = "an alert fired after a restart, when the server was back: only rate() and increase() know that counters reset."
MISSED = {
    "overload": "the queue grew for five minutes and no alert fired: users wait longer and longer.",
    "a server is gone": "a server did not answer for five minutes and no alert fired: "
    "of all its series only `up` is left.",
    "a dead process": "each request to a replica failed and no alert fired: the server is up, and nothing waits there.",
    "a dead process at night": "each request failed at night and no alert fired: few requests are few failures. "
    "Which share of them fails?",
}


def check(trial):
    series = OUTAGES["series_of"](trial.page(), MODEL)
    stories = [(name, story) for name, story in (HEALTHY | SICK).items() for _ in range(EACH)]
    recordings = [OUTAGES["record"](series, story, trial.rng) for _, story in stories]
    firings = trial.first_firings("rules.yaml", [values for values, *_ in recordings], SCRAPE_S, WARM_S, LENGTH_S)
    if unknown := sorted(metrics(trial.folder / "rules.yaml") - {name for name, _ in series}):
        said = f"your server has no metric {unknown[0]}: its page is `labctl metrics exercise --raw`."
        trial.expect("metrics", "those of your server", unknown[0], False, said)
        return
    false_alarms, missed, sentences = {}, {}, []
    for (name, _), (_, since, back), fired in zip(stories, recordings, firings, strict=True):
        if fired is not None and (fired < since or name in HEALTHY):
            false_alarms.setdefault(name, []).append(clock(fired - since))
            returned = name == "a restart" and fired >= back > since
            sentences.append(ORDINARY if fired < since else RESET if returned else FALSE[name])
        elif name in SICK and (fired is None or fired - since > LATEST_S):
            missed.setdefault(name, []).append("never" if fired is None else clock(fired - since))
            sentences.append(MISSED[name])
    for title, kinds, found in (("false alarms", HEALTHY | SICK, false_alarms), ("faults missed", SICK, missed)):
        rows = [f"{name}: {', '.join(when)}" for name, when in found.items()]
        listed = "\n".join([f"{sum(map(len, found.values()))}", *rows])
        trial.expect(f"{title} in {EACH * len(kinds)} recordings", "0", listed, not found, "".join(sentences[:1]))


def metrics(rules):
    """The metrics of a server that the rules ask for, and do not themselves record."""
    data = yaml.safe_load(rules.read_text(encoding="utf-8"))
    listed = [rule for group in data["groups"] for rule in group["rules"]]
    asked = {name for rule in listed for name in OWN.findall(str(rule["expr"]))}
    return asked - {rule.get("record") for rule in listed}


def clock(seconds):
    """Minutes and seconds after the event."""
    return f"after {seconds // 60:.0f}:{seconds % 60:02.0f}" if seconds >= 0 else "before anything"
