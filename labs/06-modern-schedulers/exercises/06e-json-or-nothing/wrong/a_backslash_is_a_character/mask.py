"""Which tokens may come next, so that an answer is a JSON object. This file is next to iterative-gpt2's model.py."""

LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
DIGITS, CLOSES = "0123456789", {"{": "}", "[": "]"}
LONGEST = 12  # characters of a string


class Mask:
    """One answer. The server asks `allowed` before each token, samples one of these tokens, and calls `accept`."""

    def __init__(self, words, end):
        """`words[token]` is the text of each token: "" if it is the end token (`end`) or has no text of its own."""
        self.words, self.end = words, end
        self.state = "start", (), 0

    def allowed(self):
        """True or False for each token: may it come next?"""
        allowed = [bool(word) and walk(self.state, word) is not None for word in self.words]
        allowed[self.end] = self.state[0] == "done"
        return allowed

    def accept(self, token):
        """The token was sampled."""
        if token != self.end:
            self.state = walk(self.state, self.words[token])


def walk(state, text):
    """The state after a text; None if it cannot follow."""
    for char in text:
        state = advance(*state, char)
        if state is None:
            return None
    return state


def advance(mode, stack, length, char):
    """The state after one more character; None if it cannot follow.

    A state is what may follow, the brackets that are open, and the length of the string that is open.
    """
    if mode == "start":
        return ("key or }", ("{",), 0) if char == "{" else None
    if mode in ("key or }", "key"):
        if char == "}" and mode == "key or }":
            return closed(stack)
        return ("key string", stack, 0) if char == '"' else None
    if mode in ("key string", "string"):
        if char == '"':
            return "colon" if mode == "key string" else "after", stack, 0
        if length == LONGEST or char < " ":
            return None
        return mode, stack, length + 1
    if mode.endswith(" escape"):
        return (mode.removesuffix(" escape"), stack, length) if char in '"\\/bfnrt' else None
    if mode == "colon":
        return ("value", stack, 0) if char == ":" else None
    if mode in ("value", "value or ]"):
        if char == "]" and mode == "value or ]":
            return closed(stack)
        return begun(stack, char)
    if mode == "minus":
        return ("zero" if char == "0" else "digits", stack, 0) if char in DIGITS else None
    if mode == "digits" and char in DIGITS:
        return mode, stack, 0
    if mode.startswith("literal "):
        rest = mode.removeprefix("literal ")
        return (f"literal {rest[1:]}" if rest[1:] else "after", stack, 0) if char == rest[0] else None
    if mode in ("after", "zero", "digits"):
        if char == ",":
            return "key" if stack[-1] == "{" else "value", stack, 0
        return closed(stack) if char == CLOSES[stack[-1]] else None
    return None  # done: nothing may follow


def begun(stack, char):
    """The state after the first character of a value."""
    if char in "{[":
        return "key or }" if char == "{" else "value or ]", (*stack, char), 0
    if char in LITERALS:
        return f"literal {LITERALS[char]}", stack, 0
    mode = {'"': "string", "-": "minus", "0": "zero"}.get(char, "digits" if char in DIGITS else None)
    return (mode, stack, 0) if mode else None


def closed(stack):
    """The state after the innermost bracket is closed."""
    return "after" if stack[1:] else "done", stack[:-1], 0
