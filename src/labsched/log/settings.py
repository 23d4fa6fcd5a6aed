"""With which settings a scheduler was served: the line SCHEDULER, with which its log can be replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labsched.errors import LabError
from labsched.log.lines import NUMBERS
from labsched.pace import Pace

HASH_BYTES = 3  # of each token in the field `prefixes` of a request's line


@dataclass(frozen=True)
class SchedulerSettings:
    """The scheduler's settings: the parameters of its config.pbtxt, and the values in force."""

    words: Mapping[str, str]
    blocks: int
    block_size: int
    step_tokens: int
    context: int  # tokens that the model sees
    vocabulary: int
    own: str | None = None  # a file of the learner's with a scheduler of its own
    recorded: Mapping[str, Any] = field(default_factory=dict)  # of a learner's own vLLM: its version and own settings
    beyond: Sequence[str] = ()  # what that server does, but a replay of its scheduler does not

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> SchedulerSettings:
        """Read a line SCHEDULER, the labs' or vLLM's."""
        words = {name: str(word) for name, word in line["words"].items()}
        numbers = {name: int(line[name]) for name in NUMBERS}
        beyond = tuple(line.get("beyond", ()))
        return cls(words=words, **numbers, own=line["own"], recorded=line.get("vllm", {}), beyond=beyond)

    def to_json(self) -> dict[str, Any]:
        """The fields of the line SCHEDULER that the labs' own engines write."""
        return {"words": dict(self.words), **{name: getattr(self, name) for name in (*NUMBERS, "own")}}

    @property
    def reuse(self) -> bool:
        return self.words["enable_kv_cache_reuse"].lower() == "true"

    @property
    def vllm(self) -> bool:
        return self.words.get("engine") == "vllm"

    @property
    def pace(self) -> Pace | None:
        """The device whose times the server takes for its own (``pace``). Raises LabError: it is not known."""
        words = self.words
        try:
            return Pace.of(
                words.get("pace", ""),
                words.get("pace_shape", ""),
                words.get("pace_slower") or "1",
                words.get("pace_table", ""),
            )
        except ValueError as error:
            remedy = "--set pace_shape=llama-2-7b too; pace_table is the line that labctl pace measure prints"
            raise LabError(
                "this device cannot be predicted", str(error), remedy, code="device-unpredictable"
            ) from error
