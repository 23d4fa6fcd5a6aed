"""Prompts of all kinds, with readers and without: how long did readers wait, and what was moved for nothing?"""

from tokenizers import Tokenizer

from labkit.client.ask import TextStream, tensor, text_tensor

MODEL = "apart-gpt2"
BLOCK = 16
READING, ANSWER = 900, 2  # tokens of a reader's answer, which lasts longer than the requests; of the others'
SHORT, LONG, MORE = 20, 110, 12  # the limit lies between: 40 to 90
# tokens: little to compute; too much; of a known prompt's new end
WAITED = "a reader waited too long: a prompt with many tokens to compute was computed beside it."
WASTED = "bytes were moved for nothing: a prompt with few tokens to compute, or one that no reader waits for, can stay."
TOGETHER = "readers wait for the same step: how many there are does not change what may be computed in it."
OTHER = "with another time or limit another number of tokens may be computed: exactly as many as the limit allows."


def check(trial):
    token_ms, allowed = trial.settings["token_ms"], trial.rng.randint(40, 90)
    limit_ms = (allowed + 0.5) * token_ms  # so that no rounding decides
    with TextStream(trial.servers[0]) as other, TextStream(trial.servers[1]) as decoding:
        pair = Pair(trial, other, decoding, limit_ms)
        known, half_known = pair.text(LONG), pair.text(2 * BLOCK)
        for prompt in (known, half_known, pair.text(SHORT), pair.text(LONG)):
            pair.ask(pair.decided(prompt, readers=0))  # without a reader all of them may stay
        asks = [pair.text(SHORT), pair.text(LONG), known + pair.text(MORE), half_known + pair.text(LONG)]
        asks = [pair.decided(prompt, readers=1) for prompt in trial.rng.sample(asks, len(asks))]  # before it reads
        reader = decoding.send(MODEL, pair.text(8), max_tokens=READING, ignore_eos=True)
        trial.wait_first(decoding, reader)
        for decided in asks:
            pair.ask(decided)
        if reader.end:
            raise trial.TooBusy("the reader's answer ended before the last request")
        between = most_between(trial.steps(MODEL), reader.id)
    trial.expect("tokens of prompts between a reader's two, at most", f"{allowed}", between, between <= allowed, WAITED)
    needless = sum(must is False for must in pair.moved)
    trial.expect("requests that were moved for nothing", "0", needless, needless == 0, WASTED)
    elsewhere(trial)


def elsewhere(trial):
    """The learner's decisions about other servers: other times and limits, just within them and just beyond."""
    wrong = []
    for token_ms, readers in ((0.25, 1), (0.125, 3), (0.5, 2)):  # exact in binary: the limit itself is allowed
        allowed = trial.rng.randint(20, 200)
        for todo, waiting in ((allowed, readers), (allowed + 1, readers), (allowed + 1, 0)):
            cached = BLOCK * trial.rng.randint(1, 20)
            limit_ms, prompt = allowed * token_ms, cached + todo
            stays = asked(trial, prompt, cached, waiting, token_ms, limit_ms)
            if stays != (waiting == 0 or todo == allowed):
                place = "stays" if stays else "goes"
                wrong.append(
                    (waiting, f"{todo} tokens, {token_ms} ms each, limit {limit_ms} ms, {waiting} readers: {place}")
                )
    shown, words = (wrong[0][1], TOGETHER if min(wrong)[0] > 1 else OTHER) if wrong else ("as the limit says", "")
    trial.expect("decisions about other servers", "as the limit says", shown, not wrong, words)


def asked(trial, prompt, cached, readers, token_ms, limit_ms):
    """What the learner's function says."""
    known = {"prompt": prompt, "cached": cached, "readers": readers, "token_ms": token_ms, "limit_ms": limit_ms}
    stays = trial.call("bypass.py", "stays", known)
    if not isinstance(stays, bool):
        raise trial.Error("stays is to return True or False", f"not {stays!r}", code="answer-invalid")
    return stays


class Pair:
    """The two servers, and the learner's decision between them.

    `moved`: for each request that was handed over, whether that was needed.
    """

    def __init__(self, trial, other, decoding, limit_ms):
        self.trial, self.other, self.decoding, self.moved = trial, other, decoding, []
        self.limit_ms = limit_ms
        self._tokenizer = Tokenizer.from_file(f"{trial.tokenizer_dir}/tokenizer.json")
        self._known = []  # ids that the decoding server has computed

    def text(self, tokens):
        """A text of at least so many tokens, and hardly more."""
        said = ""
        while len(self._tokenizer.encode(said).ids) < tokens:
            said += f" {self.trial.rng.choice(WORDS)}"
        return said

    def decided(self, prompt, readers):
        """A prompt, whether the learner lets it stay, and whether it must be moved."""
        ids, token_ms = self._tokenizer.encode(prompt).ids, self.trial.settings["token_ms"]
        cached = max((common(ids, known) for known in self._known), default=0)
        stays = asked(self.trial, len(ids), cached, readers, token_ms, self.limit_ms)
        return prompt, stays, readers > 0 and (len(ids) - cached) * token_ms > self.limit_ms

    def ask(self, decided):
        """Send a request where the learner says, and wait for its answer."""
        prompt, stays, must = decided
        inputs = [text_tensor("text_input", prompt)]
        if not stays:
            self.moved.append(must)
            first = self._wait(self.other, [*inputs, tensor("hand_over", True, bool)], "handed_over")
            inputs.append(text_tensor("handed_over", first.text))
        record = self._wait(self.decoding, inputs, "text_output")
        self._known.append(self._tokenizer.encode(prompt + record.text).ids[:-1])

    def _wait(self, stream, inputs, output):
        record = stream.send_inputs(MODEL, "", inputs, output=output, max_tokens=ANSWER, ignore_eos=True)
        self.trial.wait(stream, record)
        return record


def common(ids, known):
    """Tokens at the beginning of `ids` that are in the whole blocks of `known`; the last one is always computed."""
    found = 0
    while found + BLOCK < len(ids) and found + BLOCK <= len(known) and ids[: found + BLOCK] == known[: found + BLOCK]:
        found += BLOCK
    return found


def most_between(steps, reader):
    """The most tokens of prompts that were computed in a step in which the reader decodes."""
    most = 0
    for step in steps:
        tokens, phase = step.tokens, step.phase
        if reader in step.ids and phase[step.ids.index(reader)] == "d":
            most = max(most, sum(count for count, letter in zip(tokens, phase, strict=True) if letter == "p"))
    return most


WORDS = "the river runs under an old bridge near our town where people come to see its water every day".split()
