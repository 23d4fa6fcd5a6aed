"""Try a grammar (vLLM's structured outputs) in a process that can be ended, before vLLM compiles it in the server's.

vLLM compiles a request's JSON schema, pattern or grammar where it computes the steps, and sets no limit: a schema of
1 kB can keep a processor and ever more memory for good. llguidance bounds each token's mask itself, but not this.
"""

import contextlib
import hashlib
import os
import resource
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from labserve.params import MOST_STRUCTURED, STRUCTURED, BadInput, Refusal

BACKEND = "guidance"  # vLLM's name for llguidance, which the trial below compiles with
CPU_S = 1  # whole seconds, the process's start included (0.1 s); an ordinary schema takes 0.01 s
MEMORY = 2**30  # bytes of address space; an ordinary schema's process has a tenth of them
DEADLINE_S = 20.0  # for a process that gets no processor: it has done nothing wrong, but it is ended too
KEPT = 256  # results
MOST_WAITING = 32  # grammars that have no result yet
AT_ONCE = 2  # processes


class Grammars:
    """Tries each grammar once, each in a process of its own.

    The scheduler's thread owns the results, and a thread of the pool waits for each process.

    Args:
        command: a program that reads a grammar of llguidance from its standard input, and writes what is wrong with it
            to its standard output: nothing for a good one.
        cpu_s, memory: the limits of its process, in seconds of a processor and bytes of address space.
        deadline_s: seconds after which it is killed, whatever it waits for.
        kept: results that are remembered, the newest ones.
        most_waiting: grammars that may wait for their result.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        cpu_s: int = CPU_S,
        memory: int = MEMORY,
        deadline_s: float = DEADLINE_S,
        kept: int = KEPT,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        # A model is a part of Triton's stub, for which this is the first python3 in PATH: the environment's own.
        self._command = command or (sys.executable or "python3", "-m", __name__)
        self._cpu_s, self._memory, self._deadline_s = cpu_s, memory, deadline_s
        self._most_kept, self._most_waiting = kept, most_waiting
        self._results: OrderedDict[bytes, Future[None]] = OrderedDict()  # by the hash of what they are about
        self._pool = ThreadPoolExecutor(AT_ONCE, "grammars")

    def compile(self, name: str, serialized: Callable[[], str]) -> "Future[None]":
        """Begin to compile a grammar, or return what is known of it.

        Args:
            name: all that the grammar depends on.
            serialized: makes llguidance's form of it.

        Returns:
            Its result: nothing, or a `BadInput` for a grammar that is wrong or too complex, or a `Refusal` where this
            machine is too busy to find out (that is not remembered).

        Raises:
            Refusal: too many grammars are waiting.
        """
        key = hashlib.sha256(name.encode(errors="surrogatepass")).digest()
        known = self._results.get(key)
        if known and not (known.done() and not _is_final(known)):
            self._results.move_to_end(key)
            return known
        if sum(not result.done() for result in self._results.values()) >= self._most_waiting:
            raise Refusal(f"{self._most_waiting} grammars wait to be compiled, the maximum queue size: try again")
        result = self._results[key] = self._pool.submit(self._try, serialized)
        self._results.move_to_end(key)
        surplus = max(0, len(self._results) - self._most_kept)
        for old in [key for key, result in self._results.items() if result.done()][:surplus]:
            del self._results[old]
        return result

    def _try(self, serialized: Callable[[], str]) -> None:
        try:
            grammar = serialized().encode()
        except Exception as error:  # vLLM reads what the client sent
            raise BadInput(STRUCTURED, str(error)) from error
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        pipe = subprocess.PIPE
        with subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
            for limit, most in ((resource.RLIMIT_CPU, self._cpu_s), (resource.RLIMIT_AS, self._memory)):
                _, hard = resource.getrlimit(limit)
                value = most if hard == resource.RLIM_INFINITY else min(most, hard)
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    resource.prlimit(process.pid, limit, (value, value))  # before it has the grammar
            try:
                said, errors = process.communicate(grammar, self._deadline_s)
            except subprocess.TimeoutExpired:
                process.kill()
                why = f"deadline exceeded: this machine did not compile the grammar within {self._deadline_s:g} s"
                raise Refusal(why) from None
            except BaseException:
                process.kill()
                raise
        if process.returncode == 1 and b"MemoryError" not in errors:
            raise RuntimeError(f"the compiler of grammars failed: {errors.decode(errors='replace')}")
        if process.returncode:  # a signal: of the kernel (processor time), or of a library that got no memory
            limits = f"{self._cpu_s} s of a processor or {self._memory / 2**30:g} GiB of memory"
            raise BadInput(STRUCTURED, f"it is too complex: compiling it takes more than {limits}")
        if said:
            raise BadInput(STRUCTURED, said.decode())


def _is_final(result: "Future[None]") -> bool:
    """Whether a result would be the same again."""
    return isinstance(result.exception(), BadInput | None)


def grammar_of(params: Any, config: Any) -> tuple[str, Callable[[], str]]:
    """The arguments of `Grammars.compile` for vLLM's `StructuredOutputsParams` under its `StructuredOutputsConfig`.

    Raises:
        BadInput: it is too long.
    """
    from vllm.v1.structured_output.backend_guidance import serialize_guidance_grammar
    from vllm.v1.structured_output.request import get_structured_output_key

    kind, text = get_structured_output_key(params)
    if len(text) > MOST_STRUCTURED:
        raise BadInput(STRUCTURED, f"expected a text of at most {MOST_STRUCTURED:,} characters")
    spaces, properties = config.disable_any_whitespace, config.disable_additional_properties
    return f"{kind} {text}", partial(serialize_guidance_grammar, kind, text, spaces, properties)


def backend_config(given: dict[str, Any]) -> dict[str, Any]:
    """vLLM's `structured_outputs_config` with the backend that grammars are tried with.

    Raises:
        ValueError: another one is asked for.
    """
    asked = given.get("backend", "auto")
    if asked not in ("auto", BACKEND):
        raise ValueError(
            f"structured_outputs_config: '{asked}' would compile what clients send without a limit; use '{BACKEND}'"
        )
    return {**given, "backend": BACKEND}


def main() -> None:
    """Compile the grammar on the standard input, and write what is wrong with it to the standard output."""
    from llguidance import LLMatcher

    sys.stdout.buffer.write(LLMatcher.validate_grammar(sys.stdin.buffer.read().decode()).encode())


if __name__ == "__main__":
    main()
