"""The learner's health check on a server that is idle, busy, fails once, and whose model's process is killed at last.

The model is the exercise's own: requests of the check can make it slow, let it fail, and kill it.
"""

import time

from labkit.client.ask import text_tensor

MODEL = "waits"
STEP_S, BUSY_S = 0.1, 3.3  # until an answer; busy, it is so long for each request, so that another try waits as long
MOST_BUSY_S = 4.0  # until an answer, as the task says
MOST, SAID_S = 3, 10.0  # requests of one health check; until it has said that a process is dead
LOAD = "the health check sends more than three requests to a replica that is well: a check is load too."
IDLE = "an idle replica is taken out: it answers at once."
BUSY = "a busy replica is taken out: it answers, within 4 s. Its load would go to the others, and make these busy too."
ONCE = (
    "a replica is taken out for one failed request: "
    "the next one was answered. Ask again before you say that it is dead."
)
NOT_ASKED = (
    "the model's process is dead and the check says that it is well: "
    "READY and the metrics are Triton's own answers. Ask the model for one."
)
ERROR = (
    "the model's process is dead and the check says that it is well: "
    "a status of 500 is Triton's answer, not the model's."
)
LATE = "the model's process is dead and the check takes too long to say so: a dead process fails at once."


def check(trial):
    asked = 0

    with trial.unary() as client:

        def send(text):
            return client.send_inputs(MODEL, text, [text_tensor("text_input", text)])

        def answer(text):
            trial.wait(client, record := send(text))
            return record

        def few(state):
            nonlocal asked
            asked = int(answer("07c-asked").text)
            title = f"{state}: its requests to the model"
            return trial.expect(title, f"at most {MOST}", asked, asked <= MOST, LOAD)

        if not (expect(trial, "idle", True, IDLE) and few("idle")):
            return

        answer(f"07c-seconds={BUSY_S}")
        began = time.monotonic()
        if not expect(trial, "busy", True, BUSY):
            if time.monotonic() - began >= MOST_BUSY_S:  # else no answer could have come so late
                answer("what is left of the health check's requests is before this one")
                again = answer("and nothing before this one")
                if again.end - again.start > (BUSY_S + MOST_BUSY_S) / 2:
                    raise trial.TooBusy("the server did not answer as soon as the exercise says")
            return
        if not few("busy"):
            return
        answer(f"07c-seconds={STEP_S}")

        answer("07c-failures=1")
        if not (expect(trial, "one failed request", True, ONCE) and few("one failed request")):
            return

        trial.wait_ended(client, send("07c-die"))
        while True:  # until Triton knows that the process has ended
            trial.wait_ended(client, last := send("are you there"))
            if last.error:
                break
        limit = trial.patient(SAID_S)
        if expect(trial, "its process is dead", False, ERROR if asked else NOT_ASKED):
            late = trial.is_over(limit)
            trial.expect("said", f"within {SAID_S:g} s", "later" if late else "in time", not late, LATE)


def expect(trial, state, wanted, sentence):
    said = trial.call("health.py", "healthy", trial.endpoints.http, trial.endpoints.metrics)
    if not isinstance(said, bool):
        sentence = "healthy returns True or False."
    return trial.expect(f"{state}: healthy returns", f"{wanted}", said, said is wanted, sentence)
