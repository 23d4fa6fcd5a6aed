"""What an engine is asked for beyond continuous batching, read from the words of ``tensorrt_llm/config.pbtxt``."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """The settings in force.

    ``max_num_tokens`` is what one step computes at most: a token for each that decodes, and prompts with the rest.
    With ``chunked_context`` a prompt goes in pieces of what is left (Sarathi-Serve: Agrawal et al., OSDI 2024);
    without, it waits for a step that has room for all of it.
    """

    chunked_context: bool = True
    max_num_tokens: int = 256

    @classmethod
    def of(cls, word: Callable[[str], str], usual: int, batch: int, context: int) -> "Features":
        """From a configuration's words; an empty one is not given.

        Args:
            word: a parameter of config.pbtxt, "" where there is none.
            usual: tokens of a step where nothing is said of them.
            batch: sequences that may run at a time.
            context: tokens that the model sees; without chunks a step has room for as many, unless it is told.

        Raises:
            ValueError: a step would have no token for each of the batch.
        """
        chunked = word("enable_chunked_context").lower() != "false"
        told = word("max_num_tokens")
        most = int(told) if told else max(usual if chunked else context, batch)
        if most < batch:
            raise ValueError(f"max_num_tokens: {most} are not a token for each of max_num_sequences={batch}")
        return cls(chunked, most)

    def in_force(self, word: Callable[[str], str]) -> list[tuple[str, str, str, str]]:
        """For ``labserve.effective``: (name, asked, in force, why where it is not as asked)."""
        told = word("max_num_tokens")
        usual = "this engine's own" if self.chunked_context else "all that the model sees: a prompt goes in one piece"
        return [("max_num_tokens", told, str(self.max_num_tokens), "" if told else usual)]
