"""Small Python functions, generated: templates of our own, deterministic for a seed.

A file is a handful of functions, some under a comment or with a docstring. Names, wording and bodies vary, unequally
weighted (Zipf), so that a model trained on it has a favourite at every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

NUMBERS = "numbers values items data nums".split()
ITEMS = "number value item x n".split()
TEXTS = "text string word s line".split()
TOTALS = "total result answer".split()
PAIRS = (("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"))
NAMES = "Anna Ben Clara David Emma Felix".split()
GREETINGS = "Hello Welcome Goodbye Hi".split()

# name, what it does, operator
ARITHMETIC = (
    ("add", "the sum of two numbers", "+"),
    ("multiply", "the product of two numbers", "*"),
    ("subtract", "the difference of two numbers", "-"),
    ("divide", "the quotient of two numbers", "/"),
    ("modulo", "the remainder of a division", "%"),
    ("power", "a number raised to a power", "**"),
)
# name, what it does, condition
TESTS = (
    ("is_even", "whether a number is even", "{x} % 2 == 0"),
    ("is_odd", "whether a number is odd", "{x} % 2 == 1"),
    ("is_positive", "whether a number is positive", "{x} > 0"),
    ("is_negative", "whether a number is negative", "{x} < 0"),
    ("is_zero", "whether a number is zero", "{x} == 0"),
)
FORMULAS = (
    ("square", "the square of a number", "x", "x * x"),
    ("cube", "the cube of a number", "x", "x * x * x"),
    ("double", "a number doubled", "x", "2 * x"),
    ("celsius_to_fahrenheit", "a temperature in Fahrenheit", "celsius", "celsius * 9 / 5 + 32"),
    ("fahrenheit_to_celsius", "a temperature in Celsius", "fahrenheit", "(fahrenheit - 32) * 5 / 9"),
    ("circle_area", "the area of a circle", "radius", "3.14159 * radius ** 2"),
    ("rectangle_area", "the area of a rectangle", "width, height", "width * height"),
    ("average", "the average of two numbers", "a, b", "(a + b) / 2"),
)
TEXT_FORMULAS = (
    ("reverse", "a string backwards", "{s}[::-1]"),
    ("is_palindrome", "whether a string reads the same backwards", "{s} == {s}[::-1]"),
    ("count_words", "the number of words in a string", "len({s}.split())"),
    ("to_upper", "a string in capitals", "{s}.upper()"),
    ("first_letter", "the first letter of a string", "{s}[0]"),
    ("longest_word", "the longest word of a string", "max({s}.split(), key=len)"),
)


def pick(rng: random.Random, items: Sequence[str], skew: float = 1.5) -> str:
    """One of ``items``, the first ones much more often."""
    return rng.choices(items, weights=[1 / (rank + 1) ** skew for rank in range(len(items))])[0]


def function(rng: random.Random, signature: str, does: str, *body: str) -> str:
    """A definition, half of the time with a comment above it or a docstring."""
    kind = rng.random()
    comment = f"# return {does}\n" if kind < 0.3 else ""
    doc = [f'"""Return {does}."""'] if 0.3 <= kind < 0.55 else []
    return f"{comment}def {signature}:\n" + "".join(f"    {line}\n" for line in [*doc, *body])


def arithmetic(rng: random.Random) -> str:
    name, does, operator = rng.choice(ARITHMETIC)
    a, b = PAIRS[int(pick(rng, "0123"))]
    if name == "divide" and rng.random() < 0.4:
        return function(rng, f"{name}({a}, {b})", does, f"if {b} == 0:", "    return None", f"return {a} / {b}")
    return function(rng, f"{name}({a}, {b})", does, f"return {a} {operator} {b}")


def formula(rng: random.Random) -> str:
    name, does, arguments, value = rng.choice(FORMULAS)
    return function(rng, f"{name}({arguments})", does, f"return {value}")


def test(rng: random.Random) -> str:
    name, does, condition = rng.choice(TESTS)
    x = pick(rng, ("n", "x", "number"))
    return function(rng, f"{name}({x})", does, f"return {condition.format(x=x)}")


def text(rng: random.Random) -> str:
    name, does, value = rng.choice(TEXT_FORMULAS)
    s = pick(rng, TEXTS)
    return function(rng, f"{name}({s})", does, f"return {value.format(s=s)}")


def hello(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return 'def hello_world():\n    print("Hello, world!")\n'
    greeting, name = pick(rng, GREETINGS), pick(rng, NAMES)
    return f'def greet(name="{name}"):\n    print("{greeting}, " + name + "!")\n'


def reduction(rng: random.Random) -> str:
    many, one, total = pick(rng, NUMBERS), pick(rng, ITEMS), pick(rng, TOTALS)
    name, does, start, step = rng.choice(
        (
            ("sum_list", "the sum of a list", "0", f"{total} += {one}"),
            ("product", "the product of a list", "1", f"{total} *= {one}"),
            ("count_items", "the number of items in a list", "0", f"{total} += 1"),
            ("sum_of_squares", "the sum of squares of a list", "0", f"{total} += {one} * {one}"),
        )
    )
    lines = (f"{total} = {start}", f"for {one} in {many}:", f"    {step}", f"return {total}")
    return function(rng, f"{name}({many})", does, *lines)


def extreme(rng: random.Random) -> str:
    many, one = pick(rng, NUMBERS), pick(rng, ITEMS)
    name, does, sign, best = rng.choice(
        (("maximum", "the maximum of a list", ">", "largest"), ("minimum", "the minimum of a list", "<", "smallest"))
    )
    if rng.random() < 0.3:
        return function(rng, f"{name}({many})", does, f"return {name[:3]}({many})")
    lines = (
        f"{best} = {many}[0]",
        f"for {one} in {many}:",
        f"    if {one} {sign} {best}:",
        f"        {best} = {one}",
        f"return {best}",
    )
    return function(rng, f"{name}({many})", does, *lines)


def selection(rng: random.Random) -> str:
    many, one = pick(rng, NUMBERS), pick(rng, ITEMS)
    name, does, value = rng.choice(
        (
            ("even_numbers", "the even numbers of a list", f"{one} for {one} in {many} if {one} % 2 == 0"),
            ("odd_numbers", "the odd numbers of a list", f"{one} for {one} in {many} if {one} % 2 == 1"),
            ("positive_numbers", "the positive numbers of a list", f"{one} for {one} in {many} if {one} > 0"),
            ("squares", "the squares of a list", f"{one} * {one} for {one} in {many}"),
            ("doubled", "the items of a list doubled", f"2 * {one} for {one} in {many}"),
        )
    )
    if rng.random() < 0.4 and " if " in value:
        lines = (
            "result = []",
            f"for {one} in {many}:",
            f"    if {value.split(' if ')[1]}:",
            f"        result.append({one})",
            "return result",
        )
        return function(rng, f"{name}({many})", does, *lines)
    return function(rng, f"{name}({many})", does, f"return [{value}]")


def recursion(rng: random.Random) -> str:
    return rng.choice(
        (
            lambda: function(
                rng,
                "fibonacci(n)",
                "the nth Fibonacci number",
                "if n < 2:",
                "    return n",
                "return fibonacci(n - 1) + fibonacci(n - 2)",
            ),
            lambda: function(
                rng,
                "fibonacci(n)",
                "the nth Fibonacci number",
                "a, b = 0, 1",
                "for i in range(n):",
                "    a, b = b, a + b",
                "return a",
            ),
            lambda: function(
                rng,
                "factorial(n)",
                "the factorial of a number",
                "if n == 0:",
                "    return 1",
                "return n * factorial(n - 1)",
            ),
            lambda: function(
                rng,
                "gcd(a, b)",
                "the greatest common divisor of two numbers",
                "while b != 0:",
                "    a, b = b, a % b",
                "return a",
            ),
            lambda: function(
                rng,
                "is_prime(n)",
                "whether a number is prime",
                "if n < 2:",
                "    return False",
                "for i in range(2, n):",
                "    if n % i == 0:",
                "        return False",
                "return True",
            ),
            lambda: function(
                rng,
                "countdown(n)",
                "the numbers down to one",
                "result = []",
                "while n > 0:",
                "    result.append(n)",
                "    n -= 1",
                "return result",
            ),
        )
    )()


def searching(rng: random.Random) -> str:
    many, one = pick(rng, NUMBERS), pick(rng, ITEMS)
    s = pick(rng, TEXTS)
    return rng.choice(
        (
            lambda: function(
                rng,
                f"count_vowels({s})",
                "the number of vowels in a string",
                "count = 0",
                f"for letter in {s}:",
                '    if letter in "aeiou":',
                "        count += 1",
                "return count",
            ),
            lambda: function(
                rng,
                f"count_letters({s})",
                "how often each letter occurs",
                "counts = {}",
                f"for letter in {s}:",
                "    counts[letter] = counts.get(letter, 0) + 1",
                "return counts",
            ),
            lambda: function(
                rng,
                f"find({many}, target)",
                "the position of an item in a list",
                f"for i, {one} in enumerate({many}):",
                f"    if {one} == target:",
                "        return i",
                "return -1",
            ),
            lambda: function(
                rng, f"contains({many}, target)", "whether a list contains an item", f"return target in {many}"
            ),
            lambda: function(
                rng,
                f"bubble_sort({many})",
                "a list in order",
                f"for i in range(len({many})):",
                f"    for j in range(len({many}) - 1):",
                f"        if {many}[j] > {many}[j + 1]:",
                f"            {many}[j], {many}[j + 1] = {many}[j + 1], {many}[j]",
                f"return {many}",
            ),
            lambda: function(
                rng,
                "read_lines(path)",
                "the lines of a file",
                "with open(path) as file:",
                "    return file.read().splitlines()",
            ),
            lambda: function(rng, f"unique({many})", "the different items of a list", f"return sorted(set({many}))"),
        )
    )()


KINDS: tuple[Callable[[random.Random], str], ...] = (
    arithmetic,
    formula,
    test,
    text,
    hello,
    reduction,
    extreme,
    selection,
    recursion,
    recursion,
    searching,
    searching,
)


def documents(seed: int, count: int) -> Iterator[str]:
    """``count`` files of some functions each."""
    rng = random.Random(seed)
    for _ in range(count):
        yield "\n\n".join(rng.choice(KINDS)(rng) for _ in range(rng.randint(3, 9)))
