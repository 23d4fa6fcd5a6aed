"""An engine's features beyond continuous batching, read from the parameters of ``tensorrt_llm/config.pbtxt``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

RECOMPUTE = "recompute"
NONE, PROMPT_LOOKUP, DRAFT = "none", "prompt_lookup", "draft"
AUTO, U8 = "auto", "u8"  # how the KV cache stores numbers: as the engine does by itself, or in 8 bits each


class InForce(NamedTuple):
    """A setting: what was asked, what is in force, and why where that is another thing ("" if it is not)."""

    name: str
    asked: str
    effective: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Features:
    """The settings in force (vLLM: `SchedulerConfig`, vllm/config/scheduler.py).

    ``max_num_tokens`` is what a step computes at most: one token for each decoding request, and prompts with the rest.
    With ``chunked_context`` a prompt goes in pieces of what is left (Sarathi-Serve: Agrawal et al., OSDI 2024);
    without, it waits for a step that has room for all of it.

    With ``kv_cache_reuse`` prompts that begin alike share the blocks of their beginning (vLLM: Kwon et al., SOSP 2023;
    SGLang's RadixAttention: Zheng et al., 2024).

    With ``speculation`` a step checks up to ``num_assistant_tokens`` draft tokens for each request that decodes, and
    accepts the ones that the model itself would have chosen (Leviathan et al., ICML 2023). They are drafted from the
    prompt's own text, or by the small model in the folder ``draft_model``. It excludes ``kv_cache_reuse``.
    """

    chunked_context: bool = True
    max_num_tokens: int = 256
    kv_cache_reuse: bool = False
    speculation: str = NONE
    num_assistant_tokens: int = 0
    draft_model: str | None = None
    kv_precision: str = AUTO

    @classmethod
    def of(
        cls,
        word: Callable[[str], str],
        usual: int,
        batch: int,
        context: int,
        speculates: Sequence[str] = (),
        shares: bool = True,
        stores: Sequence[str] = (),
    ) -> "Features":
        """The features that a configuration asks for; an empty parameter counts as not set.

        Args:
            word: returns a parameter of config.pbtxt by name, "" if it is not set.
            usual: the engine's default of tokens per step.
            batch: sequences that may run at a time.
            context: the model's context length in tokens: the default of tokens per step without chunked context.
            speculates: the kinds of speculation that the engine can do.
            shares: whether the engine can share blocks of its KV cache.
            stores: the KV cache's number formats beside `AUTO`.

        Raises:
            ValueError: the engine cannot do it, or a step would have too few tokens for the batch.
        """
        if word("preemption") not in ("", RECOMPUTE):
            raise ValueError(
                f"preemption: engine {word('engine')} cannot do '{word('preemption')}': it cannot put keys and values "
                f"aside, so a preempted request is computed again ({RECOMPUTE})"
            )
        stored = word("kv_precision") or AUTO
        if stored not in (AUTO, *stores):
            has = ", ".join((AUTO, *stores))
            raise ValueError(f"kv_precision: engine {word('engine')} cannot do '{stored}'; it has: {has}")
        chunked = word("enable_chunked_context").lower() != "false"
        speculation = word("speculation") or NONE
        reuse = word("enable_kv_cache_reuse").lower() == "true"
        if reuse and not shares:
            raise ValueError(f"enable_kv_cache_reuse: engine {word('engine')} cannot share blocks and be right")
        if speculation not in (NONE, *speculates):
            has = ", ".join((NONE, *speculates))
            raise ValueError(f"speculation: engine {word('engine')} cannot do '{speculation}'; it has: {has}")
        # Prompts in pieces would end in one step with the model itself and in an earlier one with the draft, whose
        # draft tokens would then be taken for the answer.
        chunked = chunked and speculation != DRAFT
        draft_tokens = int(word("num_assistant_tokens") or 0) if speculation != NONE else 0
        if reuse and speculation != NONE:
            # OpenVINO GenAI names a block by the draft tokens that fill it, also after they are rejected. A
            # prompt in which they stand would find the keys and values of other tokens.
            raise ValueError(
                f"enable_kv_cache_reuse: engine {word('engine')} cannot share blocks beside speculation={speculation} "
                f"and be right: it keeps them under the names of draft tokens that were rejected"
            )
        each = 1 + draft_tokens
        asked_tokens = word("max_num_tokens")
        most = int(asked_tokens) if asked_tokens else max(usual if chunked else context, each * batch)
        if most < each * batch:
            drafted = f" and its {draft_tokens} draft tokens (num_assistant_tokens)" if draft_tokens else ""
            raise ValueError(f"max_num_tokens: {most} are not a token{drafted} for each of max_num_sequences={batch}")
        draft = word("draft_model") if speculation == DRAFT else None
        return cls(chunked, most, reuse, speculation, draft_tokens, draft, stored)

    def in_force(self, word: Callable[[str], str]) -> list[InForce]:
        """For ``labserve.observe.recorder.note_in_force``: what of these a model has in force."""
        tokens = word("max_num_tokens")
        usual = "this engine's own" if self.chunked_context else "all that the model sees: a prompt goes in one piece"
        asked = word("enable_chunked_context").lower() or "true"
        reuse = str(self.kv_cache_reuse).lower()
        stored = word("kv_precision") or AUTO
        larger = "" if stored == self.kv_precision else "the engine's KV cache takes more bytes than these would"
        whole = "" if asked == str(self.chunked_context).lower() else "with a draft model a prompt goes in one piece"
        return [
            InForce("max_num_tokens", tokens, str(self.max_num_tokens), "" if tokens else usual),
            InForce("enable_chunked_context", asked, str(self.chunked_context).lower(), whole),
            InForce("enable_kv_cache_reuse", reuse, reuse),
            InForce("speculation", self.speculation, self.speculation),
            InForce("preemption", RECOMPUTE, RECOMPUTE),
            InForce("kv_precision", stored, self.kv_precision, larger),
        ]
