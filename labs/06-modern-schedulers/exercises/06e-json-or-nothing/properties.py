"""Walks through the grammar of task.md, and the shortest text after which a learner's mask is wrong about a token.

The vocabulary is a small one: single characters, and tokens that run across a border of the grammar.
"""

import importlib.util
import random
import traceback
from pathlib import Path

WORDS = [*'{}[]:,"\\/-0123456789abeflnrstu. ', "\n", "é"]
WORDS += ['{"', '":', '","', '"}', '"}}', "}}", "]}", "],", "}]", "[]", "{}", '":"', '":[', ",-", '",', '"]', '"a":']
WORDS += ["12", "00", "01", "10", "-0", "1,", "1}", "1]", "tr", "ue", "tru", "false", "null", "e,", "e}", "e]", "l}"]
WORDS += ['\\"', "\\\\", "\\n", 'a"', 'a\\"', '\\\\"', "\\a", "a,", "a\nb", " fox", "bread", "breadbreadbread", "", ""]
END, HALF = len(WORDS) - 2, len(WORDS) - 1  # two tokens without a text
WALKS, TOKENS = 250, 24
LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
LONGEST = 12

ALL = "every token is allowed, so nothing is masked: forbid what cannot continue a JSON object."
ENDS = "the answer may end before its JSON is complete: only when all brackets are closed may the end token come."
NO_END = "the answer may not end although its JSON is complete: then the end token is the only one."
ON = "something may follow the whole object: when its last bracket is closed, only the end token may come."
ESCAPE = "a backslash in a string was taken for any character: it and the next character belong together."
LINE = "a line break may stand in a string: JSON forbids characters below the space there."
KIND = "a bracket may be closed by one of the other kind: keep the open brackets, not only their number."
ZERO = "a number may go on behind a leading 0: JSON has no such numbers."
COMMA = "an object or array may be closed behind a comma: after a comma comes a key, or a value."
LONG = "a string may have more than 12 characters: count them, also within a token."
FIRST = "only the first character of a token is checked: each character must be able to follow the one before it."
EMPTY = "a token without a text of its own is allowed: only the end token may be, at the end."
LOOSE = "a token is allowed that no JSON object can continue with."
STRICT = "a token is forbidden that can continue the JSON: a mask takes nothing away that the grammar allows."
RANK = ("", ALL, ESCAPE, ENDS, NO_END, ON, KIND, ZERO, COMMA, LINE, LONG, EMPTY, LOOSE, FIRST, STRICT)


def search(folder, seed):
    """The shortest text found, and the token about which the mask is wrong: {"sentence", "case"}; None: none."""
    path = Path(folder) / "mask.py"
    spec = importlib.util.spec_from_file_location("own_mask", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng, found = random.Random(seed), []
    for _ in range(WALKS):
        try:
            walk(module, rng, found)
        except Exception as error:
            lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if Path(one.filename) == path]
            if not found:  # else the mask is where the grammar is not
                words = f"mask.py, line {lines[-1] if lines else 1}: {type(error).__name__}: {error}"
                return {"sentence": words, "case": "an exception"}
    return chosen(found) if found else None


def chosen(found):
    """The sentence about the mask's wrong tokens.

    If a token's first character is right and a later one is wrong, it names the fault only beside other such tokens.
    """
    within = [case for case in found if case[0]]
    if len(within) == len(found) and {said for _, said, *_ in found} != {LONG}:
        found = [(0, FIRST, *case[2:]) for case in found]
    elif len(within) < len(found):
        found = [case for case in found if not case[0]]
    rank, _, text, words = min((RANK.index(said), len(text), text, words) for _, said, text, words in found)
    return {"sentence": RANK[rank], "case": f"after {shown(text) if text else 'nothing'}: {words}"}


def shown(text):
    return f"`{text}`".replace("\n", "\\n")


def walk(module, rng, found):
    """One answer by the grammar. Adds what the mask says wrongly on the way: (character, sentence, text, token)."""
    mask, state, text = module.Mask(list(WORDS), END), ("start", (), 0), ""
    for _ in range(TOKENS):
        right = [bool(word) and after(state, word) is not None for word in WORDS]
        right[END] = state[0] == "done"
        mine = [bool(each) for each in mask.allowed()]
        if mine != right:
            differ = [token for token in range(len(WORDS)) if mine[token] != right[token]]
            found += [wrong(state, text, token, mine) for token in differ]
        if right[END]:
            break
        possible = [token for token in range(len(WORDS)) if right[token]]
        closing = [token for token in possible if WORDS[token][-1] in '}]"']
        token = rng.choice(closing if closing and rng.random() < 0.3 else possible)
        mask.accept(token)
        state, text = after(state, WORDS[token]), text + WORDS[token]


def wrong(state, text, token, mine):
    """What is wrong about one token: the place in it, the sentence, the text before it, and the token in words."""
    name = "the end token" if token == END else "a token without a text" if token == HALF else shown(WORDS[token])
    if not mine[token]:
        return 0, NO_END if token == END else STRICT, text, f"{name} is forbidden"
    if all(mine):
        return 0, ALL, text, "every token is allowed"
    return *loose(state, token), text, f"{name} is allowed"


def loose(state, token):
    """At which of its characters this token is wrong, and why."""
    if token in (END, HALF):
        return 0, ENDS if token == END else EMPTY
    before, number = state, -1
    for char in WORDS[token]:
        state, before, number = advance(*state, char), state, number + 1
        if state is None:
            break
    mode = before[0]
    if mode == "done":
        return number, ON
    if mode.endswith(" escape"):
        return number, ESCAPE
    if mode.endswith("string"):
        return number, LINE if char < " " else LONG
    if mode == "zero" and char.isdigit():
        return number, ZERO
    if mode in ("after", "digits", "zero") and char in "]}":
        return number, KIND
    return number, COMMA if mode in ("key", "value") and char in "]}" else LOOSE


def after(state, text):
    """The state after a text; None if it cannot follow."""
    for char in text:
        state = state and advance(*state, char)
    return state


def advance(mode, stack, length, char):
    """The grammar of task.md: the state after one more character, or None."""
    if mode == "start":
        return ("first key", ("{",), 0) if char == "{" else None
    if mode in ("first key", "key"):
        return closed(stack) if char == "}" and mode != "key" else ("key string", stack, 0) if char == '"' else None
    if mode in ("key string", "value string"):
        if char == '"':
            return "colon" if mode == "key string" else "after", stack, 0
        fits = length < LONGEST and char >= " "
        return (mode + " escape" * (char == "\\"), stack, length + 1) if fits else None
    if mode.endswith(" escape"):
        return (mode.removesuffix(" escape"), stack, length) if char in '"\\/bfnrt' else None
    if mode == "colon":
        return ("value", stack, 0) if char == ":" else None
    if mode in ("value", "first value"):
        return closed(stack) if char == "]" and mode != "value" else begun(stack, char)
    if mode == "minus":
        return ("zero" if char == "0" else "digits", stack, 0) if char in "0123456789" else None
    if mode == "digits" and char in "0123456789":
        return mode, stack, 0
    if mode.startswith("rest "):
        rest = mode[5:]
        return (f"rest {rest[1:]}" if rest[1:] else "after", stack, 0) if char == rest[0] else None
    if mode in ("after", "zero", "digits"):
        if char == ",":
            return "key" if stack[-1] == "{" else "value", stack, 0
        return closed(stack) if char == {"{": "}", "[": "]"}[stack[-1]] else None
    return None


def begun(stack, char):
    if char in "{[":
        return "first key" if char == "{" else "first value", (*stack, char), 0
    if char in LITERALS:
        return f"rest {LITERALS[char]}", stack, 0
    mode = {'"': "value string", "-": "minus", "0": "zero"}.get(char, "digits" if char in "123456789" else "")
    return (mode, stack, 0) if mode else None


def closed(stack):
    return "after" if stack[1:] else "done", stack[:-1], 0
