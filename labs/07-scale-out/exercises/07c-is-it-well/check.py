"""The learner's health check on a server that is idle, busy, fails once, and whose model's process is killed at last.

The model is the exercise's own: requests of the check can make it slow, let it fail, and kill it.
"""

from labkit.client.ask import text_tensor

MODEL = "waits"
STEP_S, BUSY_S = 0.1, 1.2  # of an execution; busy, two requests are before the check's
MOST_BUSY_S = 2 * BUSY_S + 0.4  # until both are answered; the health check's is third, and so within 4 s
MOST, SAID_S = 3, 10.0  # requests of one health check; until it has said that a process is dead
LOAD = "the health check sends more than three requests to a replica that is well: a check is load too."
IDLE = "an idle replica is taken out: it answers at once."
BUSY = "a busy replica is taken out: it answers, within 4 s. Its load would go to the others, and make these busy too."
ONCE = (
    "a replica is taken out for one failed request: "
    "the next one was answered. Ask again before you say that it is dead."
)
NOT_ASKED = (
    "the model's process is dead and the check says that it is well: READY means that it was loaded. Ask for an answer."
)
ERROR = (
    "the model's process is dead and the check says that it is well: "
    "a status of 500 is Triton's answer, not the model's."
)
LATE = "the model's process is dead and the check takes too long to say so: a dead process fails at once."


def check(trial):
    with trial.unary() as client:

        def send(text):
            return client.send_inputs(MODEL, text, [text_tensor("text_input", text)])

        def order(text):
            trial.wait(client, send(text))

        before = trial.counters()
        if not expect(trial, "idle", True, IDLE):
            return
        asked = trial.wait_for(lambda: answered(trial, before), lambda count: count > 0, seconds=1.0)
        if not trial.expect("its requests to the model", f"at most {MOST}", asked, asked <= MOST, LOAD):
            return

        order(f"07c-seconds={BUSY_S}")
        work = [send(f"work {trial.rng.random()}") for _ in range(2)]
        well = expect(trial, "busy", True, BUSY)
        trial.wait(client, *work)
        if not well and max(record.end - record.start for record in work) > MOST_BUSY_S:
            raise trial.TooBusy("the server did not answer as soon as the exercise says")
        order(f"07c-seconds={STEP_S}")
        if not well:
            return

        order("07c-failures=1")
        if not expect(trial, "one failed request", True, ONCE):
            return

        trial.wait_ended(client, send("07c-die"))
        while True:  # until Triton knows that the process has ended
            trial.wait_ended(client, last := send("are you there"))
            if last.error:
                break
        time = trial.patient(SAID_S)
        if expect(trial, "its process is dead", False, ERROR if asked else NOT_ASKED):
            late = trial.is_over(time)
            trial.expect("said", f"within {SAID_S:g} s", "later" if late else "in time", not late, LATE)


def expect(trial, state, wanted, sentence):
    said = trial.call("health.py", "healthy", trial.endpoints.http, trial.endpoints.metrics)
    if not isinstance(said, bool):
        sentence = "healthy returns True or False."
    return trial.expect(f"{state}: healthy returns", f"{wanted}", said, said is wanted, sentence)


def answered(trial, before):
    """Requests that the model has answered since then."""
    return int(trial.counters().since(before).models[MODEL].succeeded)
