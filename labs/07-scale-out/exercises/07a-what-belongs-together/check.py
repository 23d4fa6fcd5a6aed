"""Sequences by the learner's client on two replicas: none breaks, each begins once, and every replica has its share."""

import json

SEQUENCES = 24
UNKNOWN = (
    "a request came to a replica that had not seen its sequence begin: all requests of a sequence need the same "
    "x-sequence-id."
)


def check(trial):
    ids = trial.rng.sample(range(1000, 1_000_000), SEQUENCES)
    lengths = {id: trial.rng.randint(2, 4) for id in ids}
    try:
        trial.client("client.py", json.dumps(lengths), str(trial.seed))
    except trial.Error as error:
        if "START" not in error.why:
            raise
        trial.expect("the sequences", "all answered", error.why, False, UNKNOWN)
        return
    steps = trial.steps("remembers")
    begun = sum(sum(step.more["start"]) for step in steps)
    trial.expect(
        "started sequences",
        f"{SEQUENCES}",
        begun,
        begun == SEQUENCES,
        "START on every request hides that a replica does not know the sequence: the sequence begins again, "
        "and its state is lost.",
    )
    served = {"1": 0, "2": 0}
    for step in steps:
        served[step.more["replica"]] += step.batch
    wanted = sum(lengths.values())
    trial.expect(
        "requests served",
        f"{wanted}",
        sum(served.values()),
        sum(served.values()) == wanted,
        "not every request was sent: does the client still ask for every step of every sequence?",
    )
    trial.expect(
        "requests of each replica",
        "some",
        " and ".join(map(str, served.values())),
        all(served.values()),
        "one replica did all the work: without x-sequence-id, or with one value for all, the balancer sends "
        "everything to the same one.",
    )
