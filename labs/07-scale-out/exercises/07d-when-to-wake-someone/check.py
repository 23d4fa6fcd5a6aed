"""The learner's alerts on recordings of two replicas: which fire although all is well, and which come too late."""

from labkit.promql.alerts import firings, read_rules
from labkit.workloads.outages import HEALTHY, LENGTH_S, SCRAPE_S, SICK, record

MODEL, EACH = "waits", 2  # recordings of each kind
WARM_S, LATEST_S = 300, 300  # before the first evaluation; from the fault to the alert
FALSE = {
    "a quiet night": "an alert fired in a night in which nothing was asked: no traffic is no fault.",
    "a restart": "an alert fired at a restart: a server that is back within a minute needs no help.",
    "a burst": "an alert fired at a burst: a queue that is gone within two minutes needs no help.",
    "stray failures": "an alert fired for one failed request among hundreds: which share of the requests failed?",
    "a busy day": "an alert fired on a busy day: many requests that are served in time are no fault.",
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
    page = trial.page()
    try:
        rules = read_rules((trial.folder / "rules.yaml").read_text(encoding="utf-8"))
    except trial.Error as error:
        trial.expect("rules.yaml", "alerts", error.what, False, f"{error.what}: {error.why}.")
        return
    told, missed, sentences = {}, {}, []
    for name, story in (HEALTHY | SICK).items():
        for _ in range(EACH):
            outage = record(page, MODEL, story, trial.rng)
            if unknown := sorted(set().union(*(rule.metrics for rule in rules)) - outage.recording.names):
                said = f"your server has no metric {unknown[0]}: its page is `labctl metrics exercise --raw`."
                trial.expect("metrics", "those of your server", unknown[0], False, said)
                return
            try:
                fired = [one.time for one in firings(rules, outage.recording, WARM_S, LENGTH_S, SCRAPE_S)]
            except trial.Error as error:
                trial.expect("rules.yaml", "can be evaluated", error.what, False, f"{error.what}: {error.remedy}.")
                return
            times = [time - outage.since for time in fired]
            if any(time < 0 or name in HEALTHY for time in times):
                told.setdefault(name, []).append(clock(times[0]))
                back = name == "a restart" and fired[0] >= outage.back > outage.since
                sentences.append(ORDINARY if times[0] < 0 else RESET if back else FALSE[name])
            elif name in SICK and not any(time <= LATEST_S for time in times):
                missed.setdefault(name, []).append(clock(times[0]) if times else "never")
                sentences.append(MISSED[name])
    for title, stories, found in (("false alarms", HEALTHY | SICK, told), ("faults missed", SICK, missed)):
        rows = [f"{name}: {', '.join(when)}" for name, when in found.items()]
        listed = "\n".join([f"{sum(map(len, found.values()))}", *rows])
        trial.expect(f"{title} in {EACH * len(stories)} recordings", "0", listed, not found, "".join(sentences[:1]))


def clock(seconds):
    """Minutes and seconds after the event."""
    return f"after {seconds // 60:.0f}:{seconds % 60:02.0f}" if seconds >= 0 else "before anything"
