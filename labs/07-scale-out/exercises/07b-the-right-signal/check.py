"""The learner's number against what really waited, on pages of an idle server and of two models with too much to do.

On the pages the models have names that the learner does not know.
"""

from labkit.client import metrics
from labkit.client.ask import text_tensor

TOKENS, MOST_TRIES = 2, 5
COUNTERS = (
    "nothing waits, but your function says otherwise: a counter only grows, and so does a number made from counters."
)
RUNNING = "{model}: a running request is not waiting. A busy replica alone needs no second one."
NONE = {
    "waits": "waits: it has no labs_waiting, because it cannot see Triton's queue. Triton counts the requests there.",
    "streams": "streams: for Triton a request is executed as soon as the model has taken it. What waits inside, only "
    "the model can say.",
}
BY_NAME = (
    "{model}: the number was right under this name, and wrong under another one: "
    "look for what the page has of a model, not at its name."
)
OTHER = "{model}: the requests on this page wait for another model, and none for this one: count only those of `model`."
NAMES = ("chat", "translate", "summarize", "search")
LOADS = {"waits": "Triton's queue", "streams": "a loop of its own"}


def check(trial):
    names = dict(zip(LOADS, trial.rng.sample(NAMES, len(LOADS)), strict=True))
    for model in LOADS:
        overloaded(trial, model, 1)  # so that the counters are not 0
    page = when(trial, lambda seen: not any(seen.waiting(model) or running(seen, model) for model in LOADS))
    for model in LOADS:
        said = asked(trial, page, model, names)
        if not isinstance(said, int | float):
            trial.expect(f"{model}, idle", "0", said, False, "waiting returns one number: how many requests wait now.")
            return
        if not trial.expect(f"{model}, idle", "0", said, said == 0, COUNTERS):
            return
    for model, where in LOADS.items():
        page = overloaded(trial, model, trial.rng.randint(6, 9))
        seen = metrics.parse_metrics(page)
        said, wait = asked(trial, page, model, names), seen.waiting(model)
        sentence = f"{model}: {wait:.0f} requests waited in {where}."
        if said == wait + running(seen, model):
            sentence = RUNNING.format(model=model)
        elif said != wait and trial.call("waiting.py", "waiting", page, model) == wait:
            sentence = BY_NAME.format(model=model)
        elif isinstance(said, int | float) and said <= 1:
            sentence = NONE[model]
        if not trial.expect(f"{model}, {where}", f"{wait:.0f}", said, said == wait, sentence):
            return
        [other] = LOADS.keys() - {model}
        said, wait = asked(trial, page, other, names), seen.waiting(other)
        if not trial.expect(f"{other}, meanwhile", f"{wait:.0f}", said, said == wait, OTHER.format(model=other)):
            return


def asked(trial, page, model, names):
    """What the learner's function says of a model on the page, where each model has another name."""
    for known, name in names.items():
        page = page.replace(f'model="{known}"', f'model="{name}"')
    return trial.call("waiting.py", "waiting", page, names[model])


def overloaded(trial, model, count):
    """Send so many requests at once; the page while some waited and all places were taken."""

    def shows(page):
        seen = metrics.parse_metrics(page)
        return count == 1 or (seen.waiting(model) > 1 and (model == "waits" or running(seen, model) > 0))

    with trial.unary() if model == "waits" else trial.stream() as client:
        for _ in range(MOST_TRIES):  # a busy machine may look at the page when all have been answered
            if model == "waits":
                sent = [client.send_inputs(model, "hello", [text_tensor("text_input", "hello")]) for _ in range(count)]
            else:
                sent = [trial.ask(client, model, "one word after the other", TOKENS) for _ in range(count)]
            page = trial.wait_for(trial.page, lambda page, sent=sent: shows(page) or all(one.end for one in sent))
            trial.wait(client, *sent)
            if shows(page):
                return page
    raise trial.TooBusy("requests were answered before the metrics page showed them")


def when(trial, wanted):
    """The first page that shows what is wanted."""
    page = trial.wait_for(trial.page, lambda page: wanted(metrics.parse_metrics(page)))
    if not wanted(metrics.parse_metrics(page)):
        raise trial.TooBusy("the server was never as this check needs it")
    return page


def running(seen, model):
    return seen.own.get((model, "labs_running"), 0.0)
