"""Sessions that grow, then many questions about one text, by the learner's score: cached tokens, and load by server."""

import math
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tokenizers import Tokenizer

from labkit.client.ask import TextStream
from labkit.client.router import Router

MODEL = "apart-gpt2"
SESSIONS, TURNS, QUESTIONS, ANSWER = 6, 3, 12, 4
NEW = random.SystemRandom()  # texts are new every time, because the servers' caches outlive a check
FIRST, MORE, SHARED, OWN = 48, 2, 24, 20  # words
MOST = 2 * QUESTIONS // 3  # to one server: any sum of what is cached and what is left to compute stays below it
WORDS = "the river runs under an old bridge near our town where people come to see its water every day".split()
FORGOTTEN = "prompts went to servers that had not seen their beginning: what is cached must count."
DROWNED = (
    "one server got nearly all questions about one text, while the others had nothing to do: load must count as well."
)


def check(trial):
    with Routed(trial) as routed:
        known = sessions(trial, routed)
        found = sum(sum(step.cached) for step in trial.steps(MODEL))
        routed.decided.clear()
        questions(trial, routed)
        asked = [decision.replica for _, decision in routed.decided[1:]]
    if found > known:
        more = f"{found} tokens of prompts were found cached, and the servers had seen {known}"
        raise trial.Error(more, "this is a fault of the exercise", code="exercise-broken")
    trial.expect("known beginnings that were found", "75%", f"{found / known:.0%}", found >= 0.75 * known, FORGOTTEN)
    most = max(map(asked.count, asked))
    trial.expect("questions to one server, at most", f"{MOST}", most, most <= MOST, DROWNED)


def text(words):
    return "".join(f" {word}" for word in NEW.choices(WORDS, k=words)) + f" {NEW.randrange(10**6)}"


def sessions(trial, routed):
    """Each next turn begins with all that was said. Returns how many tokens a server had seen, in whole blocks."""
    said, known = [text(FIRST) for _ in range(SESSIONS)], 0
    seen = [0] * SESSIONS
    for _ in range(TURNS):
        order = trial.rng.sample(range(SESSIONS), SESSIONS)
        for number, answer in zip(order, routed.send([said[number] for number in order]), strict=True):
            known += seen[number]
            seen[number] = (len(routed.ids(said[number] + answer)) - 1) // 16 * 16
            said[number] += answer + text(MORE)
    return known


def questions(trial, routed):
    """One question about a text, and when it is answered a dozen at once."""
    shared = text(SHARED)
    routed.send([shared])
    routed.send([shared + text(OWN) for _ in range(QUESTIONS)])


class Routed:
    """Requests to the servers that the learner's score chooses."""

    def __init__(self, trial):
        self.trial, self.decided = trial, []
        self._tokenizer = Tokenizer.from_file(f"{trial.tokenizer_dir}/tokenizer.json")
        self._router = Router(range(len(trial.servers)), self._scores, trial.settings["kept_blocks"])

    def __enter__(self):
        with ExitStack() as stack:
            self._streams = [stack.enter_context(TextStream(server)) for server in self.trial.servers]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc):
        self._stack.close()

    def ids(self, prompt):
        return self._tokenizer.encode(prompt).ids

    def _scores(self, candidates):
        known = [
            {name: getattr(each, name) for name in ("prompt", "cached", "requests", "tokens")} for each in candidates
        ]
        given = self.trial.call("score.py", "scores", known)
        if not isinstance(given, list) or len(given) != len(known) or not all(map(is_number, given)):
            raise self.trial.Error(
                "score gave something else than a number", f"for three servers: {given!r}", code="answer-invalid"
            )
        return given

    def send(self, prompts):
        """All of them at once, decided upon one after the other; their answers."""
        decided = [(prompt, self._router.choose(self.ids(prompt))) for prompt in prompts]
        self.decided += decided
        with ThreadPoolExecutor(len(decided)) as pool:
            return list(pool.map(self._answer, decided))

    def _answer(self, decided):
        prompt, decision = decided
        stream = self._streams[decision.replica]
        record = stream.send(MODEL, prompt, max_tokens=ANSWER, ignore_eos=True)
        self.trial.wait(stream, record)
        self._router.answered(decision, self.ids(prompt + record.text)[:-1])
        return record.text


def is_number(value):
    return isinstance(value, int | float) and math.isfinite(value)
