"""Random calls to a learner's block manager, and the fewest calls after which it does something wrong, in words.

The model of the cache here knows what is in each block, from the tables that the manager gave out. It does not know how
the manager finds it.
"""

import importlib.util
import random
import traceback
from pathlib import Path

SIZE, TRACES, LONGEST, SHRUNK = 2, 1200, 40, 12
LAST = "allocate found all tokens of a prompt: the last one must be computed, or nothing says which token is next."
WHOLE = "allocate returned a number of tokens that is not a number of whole blocks: only full blocks are found."
TABLE = "a table has too few or too many blocks, or blocks that do not exist, for the tokens of its sequence."
PREFIX = "a block was found behind other tokens than its own: its key must hold every token before it."
STALE = "a block was found that has been overwritten: when a block is taken, forget what was in it."
TWICE = "a block that a sequence holds was given to another one: a block is free when the last table lets it go."
WASTE = "a block was taken although another one has been free for longer: take the one that has been free the longest."
MISSED = "tokens were computed again that are in a block of the cache: a full block can be found by its tokens."
FREED = "a prefix was not found after its sequence was freed: a block stays known until it is taken again."
UNTOLD = "a table has blocks of the cache that allocate does not count: it returns how many tokens were found."
LOST = "blocks are missing that are free: free gives all of them back, and a call that fails must change nothing."
EARLY = "append asked for a block although the last one has room: a sequence needs the next one when all are full."
UNCOPIED = "a sequence writes into a block that another one holds: append must copy it first."
NEEDLESS = "append copied a block that no other sequence holds: the last holder writes where it is."
RETURNED = "append returned something although there is nothing to copy: then it returns None."
COPY = "append did not say what it copies: (the shared block, a new block) which is then the last one of the table."
FORKED = "the table of a fork is not its parent's: both hold the same blocks."
OTHERS = "the table of a sequence changed in a call for another sequence."
RANK = (
    LAST,
    WHOLE,
    PREFIX,
    STALE,
    TWICE,
    UNCOPIED,
    COPY,
    NEEDLESS,
    RETURNED,
    FORKED,
    OTHERS,
    EARLY,
    LOST,
    UNTOLD,
    MISSED,
    FREED,
    WASTE,
    TABLE,
)


class Wrong(Exception):
    """A rule that was broken."""


class Cache:
    """What is in the blocks, and what the manager may do next."""

    def __init__(self, module, count, shares):
        """``shares``: full blocks are found again (02e)."""
        self.shares = shares
        self.manager, self.full, self.count = module.Blocks(count, SIZE), module.OutOfBlocks, count
        self.tables, self.tokens = {}, {}
        self.content = {}  # block -> all tokens up to the last one in it
        self.ever = set()  # (block, what was in it at some time)
        self.copies = set()  # contents that have been in two blocks at a time: either may be known
        self.calls, self.freed = 0, dict.fromkeys(range(count), 0)  # block -> the call with which it became free

    def held(self, block):
        return sum(block in table for table in self.tables.values())

    def idle(self):
        return [block for block in range(self.count) if not self.held(block)]

    def must_find(self, tokens):
        found = []
        while self.shares and (len(found) + 1) * SIZE < len(tokens):
            key = tuple(tokens[: (len(found) + 1) * SIZE])
            there = [block for block, content in self.content.items() if content == key]
            if not there or key in self.copies:
                break
            found.append(there[0])
        return found

    def call(self, name, sequence, *arguments):
        """One call; True if it changed something. Raises Wrong."""
        if (name == "allocate") == (sequence in self.tables) or (name == "fork" and arguments[0] in self.tables):
            return False
        held = {*range(self.count)} - {*self.idle()}
        getattr(self, name)(sequence, *arguments)
        self.calls += 1
        self.freed |= dict.fromkeys(held & {*self.idle()}, self.calls)
        for other, table in self.tables.items():
            self.require(list(self.manager.table(other)) == table, OTHERS)
        return True

    def require(self, ok, sentence):
        if not ok:
            raise Wrong(sentence)

    def require_longest_free(self, fresh, left):
        """Raises Wrong: a free block that was left had been free for longer than a taken one. Any of 02d's may go."""
        ok = all(self.freed[taken] <= self.freed[block] for taken in fresh for block in left)
        self.require(ok or not self.shares, WASTE)

    def read(self, sequence, tokens):
        table = list(self.manager.table(sequence))
        whole = all(type(block) is int and 0 <= block < self.count for block in table)
        self.require(whole and len({*table}) == len(table) == -(-len(tokens) // SIZE), TABLE)
        return table

    def allocate(self, sequence, tokens):
        must = self.must_find(tokens)
        whole, shared = -(-len(tokens) // SIZE), sum(self.held(block) > 0 for block in must)
        try:
            found = self.manager.allocate(sequence, list(tokens))
        except self.full:
            self.require(whole > len(self.idle()), LOST)
            self.require(whole - shared > len(self.idle()), MISSED)
            return
        self.require(found != len(tokens), LAST)
        self.require(type(found) is int and found % SIZE == 0 and 0 <= found < len(tokens), WHOLE)
        table, idle = self.read(sequence, tokens), self.idle()
        for number, block in enumerate(table[: found // SIZE]):
            key = tuple(tokens[: (number + 1) * SIZE])
            if self.content.get(block) != key:
                raise Wrong(STALE if (block, key) in self.ever else PREFIX)
        fresh = table[found // SIZE :]
        for number, block in enumerate(fresh, found // SIZE):
            if block not in idle:
                alike = self.shares and self.content.get(block) == tuple(tokens[: (number + 1) * SIZE])
                raise Wrong(UNTOLD if alike else TWICE)
        if missed := must[found // SIZE :]:
            raise Wrong(MISSED if self.held(missed[0]) else FREED)
        self.require_longest_free(fresh, {*idle} - {*table})
        self.tables[sequence], self.tokens[sequence] = table, list(tokens)
        for number, block in enumerate(fresh, found // SIZE):
            self.write(block, tokens[: (number + 1) * SIZE])

    def append(self, sequence, token):
        tokens, table, idle = self.tokens[sequence], self.tables[sequence], self.idle()
        whole, shared = len(tokens) % SIZE == 0, self.held(table[-1]) > 1
        try:
            copy = self.manager.append(sequence, token)
        except self.full:
            self.require(whole or shared, EARLY)
            self.require(not idle, LOST)
            return
        after = self.read(sequence, [*tokens, token])
        if shared and not whole:
            self.require(copy is not None or after[-1] != table[-1], UNCOPIED)
            self.require(isinstance(copy, tuple) and copy == (table[-1], after[-1]) and copy[0] != copy[1], COPY)
        else:
            self.require(whole or after[-1] == table[-1], NEEDLESS)
            self.require(copy is None, RETURNED)
        if whole or shared:
            self.require(after[-1] in idle, TWICE)
            self.require_longest_free(after[-1:], {*idle} - {*after})
        self.require(after[: len(tokens) // SIZE] == table[: len(tokens) // SIZE], OTHERS)
        tokens.append(token)
        self.tables[sequence] = after
        self.write(after[-1], tokens)

    def fork(self, sequence, child):
        self.manager.fork(sequence, child)
        self.require(list(self.manager.table(child)) == self.tables[sequence], FORKED)
        self.tables[child], self.tokens[child] = [*self.tables[sequence]], [*self.tokens[sequence]]

    def free(self, sequence):
        self.manager.free(sequence)
        del self.tables[sequence], self.tokens[sequence]

    def write(self, block, tokens):
        key = tuple(tokens)
        if key in [content for other, content in self.content.items() if other != block]:
            self.copies.add(key)
        self.content[block] = key
        self.ever.add((block, key))

    def drain(self):
        """When all sequences are free, one that fills the cache has room."""
        for sequence in [*self.tables]:
            self.call("free", sequence)
        self.call("allocate", "all", [9] * (self.count * SIZE))


def search(folder, seed, shares, forks):
    """The fewest calls found that break a rule, as {"sentence", "calls"}; None: none.

    ``shares``: blocks with the same beginning are one (02e). ``forks``: there are forks among the calls (02f).
    """
    path = Path(folder) / "blocks.py"
    spec = importlib.util.spec_from_file_location("own_blocks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng, found = random.Random(seed), {}
    for _ in range(TRACES):
        count, calls = rng.randint(4, 7), calls_of(rng, forks)
        if said := played(module, path, count, calls, shares):
            found.setdefault(said, []).append((len(calls), count, calls))
    if not found:
        return None
    said = min(found, key=lambda said: RANK.index(said) if said in RANK else -1)
    small = []
    for _, count, calls in sorted(found[said])[:SHRUNK]:
        fewest = smallest(calls, lambda fewer, count=count: played(module, path, count, fewer, shares) == said)
        small.append((len(fewest), len(str(fewest)), count, fewest))
    _, _, count, calls = min(small)
    return {"sentence": said, "calls": words(calls), "blocks": count}


def calls_of(rng, forks):
    """Random calls for a few sequences. Their prompts come from a few texts, so many begin alike."""
    calls, names = [], "ABCD"
    texts = [[rng.randint(1, 2) for _ in range(8)] for _ in range(3)]
    for _ in range(rng.randint(3, LONGEST)):
        name = rng.choice(("allocate", "allocate", "append", "append", "free", *(["fork"] if forks else [])))
        one = rng.choice(names)
        rest = {"allocate": [rng.choice(texts)[: rng.randint(1, 8)]], "append": [rng.randint(1, 2)], "free": []}
        calls.append((name, one, *rest.get(name, [rng.choice(names)])))
    return calls


def played(module, path, count, calls, shares):
    """The sentence of the first rule that the calls break; "" if they break none."""
    try:
        cache = Cache(module, count, shares)
        for name, *arguments in calls:
            cache.call(name, *arguments)
        cache.drain()
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if Path(one.filename) == path]
        return f"blocks.py, line {lines[-1] if lines else 1}: {type(error).__name__}: {error}"
    return ""


def smallest(calls, still):
    """The smallest failing case: no call and no prompt token in it can be removed while it still fails."""
    again = True
    while again:
        again = False
        for at in range(len(calls) - 1, -1, -1):
            shorter = [calls[:at] + calls[at + 1 :]]
            if calls[at][0] == "allocate" and len(calls[at][2]) > 1:
                shorter.append([*calls[:at], (*calls[at][:2], calls[at][2][:-1]), *calls[at + 1 :]])
            for fewer in shorter:
                if still(fewer):
                    calls, again = fewer, True
                    break
            if again:
                break
    return calls


def words(calls):
    """The calls as a person reads them."""
    said, letters = [], {}
    for name, one, *rest in calls:
        for letter in (one, *(rest if name == "fork" else ())):
            letters.setdefault(letter, "ABCD"[len(letters)])
        if name == "allocate":
            said.append(f"allocate {letters[one]} with tokens {' '.join(map(str, rest[0]))}")
        elif name == "append":
            said.append(f"append token {rest[0]} to {letters[one]}")
        else:
            said.append(f"fork {letters[one]} as {letters[rest[0]]}" if rest else f"free {letters[one]}")
    return said
