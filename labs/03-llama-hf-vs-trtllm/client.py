"""Lab 03's client: the same prompts, all at once, through Hugging Face and through the compiled engine.

Run by ``labctl run llama``, once for each phase: as the engine is by default, in fp32 throughout (there the answers
are compared), and streaming (there the first token is timed).
"""

import sys

import numpy as np

from labkit.client import context, dataset
from labkit.client.ask import Tell, TextStream, UnaryClient, impossible_end_id, kind_of, tensor, text_tensor
from labkit.client.live import ProgressLine
from labkit.evidence import near_tie, stats
from labkit.evidence.records import Lane, RequestRecord
from labkit.tables import format_table

UNBATCHED, BATCHED, ENGINE = "llama-python", "llama-python-batched", "ensemble"
EXECUTING = {UNBATCHED: UNBATCHED, BATCHED: BATCHED, ENGINE: "tensorrt_llm"}  # the model whose step log shows it
PROMPTS = (
    "I am going to",
    "Let me tell you what I know about",
    "The best thing about a long winter is",
    "In the middle of the night we heard",
)
TIMEOUT_S = 240.0


def inputs(endpoint: str, model: str, prompt: str, tokens: int, stream: bool = False) -> list:
    """As the workshop's clients send them; `llama-python` has no batch dimension.

    No token ends an answer of the ensemble, as none ends one of Hugging Face's models here: all are of the same length.
    """
    limit = tensor("max_tokens", tokens, kind_of(endpoint, model, "max_tokens"))
    if model == UNBATCHED:
        limit.set_shape([1])
        return [text_tensor("text_input", prompt, (1,)), limit]
    made = [text_tensor("text_input", prompt), limit]
    if model == ENGINE:
        kind = kind_of(endpoint, model, "end_id")
        made += [
            text_tensor("bad_words", ""),
            text_tensor("stop_words", ""),
            tensor("end_id", impossible_end_id(kind), kind),
        ]
        made += [tensor("stream", True, np.bool_)] if stream else []
    return made


def at_once(
    endpoint: str, model: str, prompts: list[str], tokens: int, tell: Tell | None = None
) -> list[RequestRecord]:
    """Send all prompts at the same time, and wait for every answer."""
    with UnaryClient(endpoint) as client:
        records = [client.send_inputs(model, p, inputs(endpoint, model, p, tokens), tokens=tokens) for p in prompts]
        client.wait(*records, timeout=TIMEOUT_S, tell=tell)
    return records


def streamed(
    endpoint: str, model: str, prompts: list[str], tokens: int, tell: Tell | None = None
) -> list[RequestRecord]:
    """All prompts through the streaming engine: one response for each token."""
    with TextStream(endpoint) as stream:
        records = [stream.send_inputs(model, p, inputs(endpoint, model, p, tokens, stream=True)) for p in prompts]
        stream.wait(*records, timeout=TIMEOUT_S, tell=tell)
    return records


def divergence(tokenizer, one: str, other: str) -> int | None:
    """The first token at which two texts differ; None if they are equal."""
    a, b = tokenizer.encode(one).ids, tokenizer.encode(other).ids
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def is_near_tie(lab, tokenizer, text: str, place: int) -> bool:
    """In fp32 throughout, an answer may differ only where the two best tokens are a near tie."""
    if not lab.settings.get("exact"):
        return False
    lead = near_tie.margin(lab.tokenizer_dir, tokenizer.encode(text).ids[:place])
    return lead is not None and lead < near_tie.NEAR


def main() -> None:
    from tokenizers import Tokenizer

    lab = context.load_context(sys.argv[1])
    tokenizer = Tokenizer.from_file(f"{lab.tokenizer_dir}/tokenizer.json")

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    endpoint, tokens = lab.endpoints["grpc"], int(lab.settings["output_tokens"])
    wanted = int(lab.settings["prompts"])
    more = dataset.make_chats(count, max(0, wanted - len(PROMPTS)), seed=3)
    prompts = [*PROMPTS, *(item.prompt for item in more)][:wanted]
    streaming = lab.settings["decoupled_mode"]
    models = (ENGINE,) if streaming else (UNBATCHED, BATCHED, ENGINE)

    def send(model: str, texts: list[str], length: int, tell: Tell | None = None) -> list[RequestRecord]:
        return (streamed if streaming else at_once)(endpoint, model, texts, length, tell)

    print(f"\n{lab.phase}: {len(prompts)} prompts at once, {tokens} tokens each")
    data: dict = {"models": {}, "lanes": {}}
    every, rows, answers = [], [], {}
    for model in models:
        send(model, prompts[:1], 4)  # warm-up
        with ProgressLine(model) as progress:
            records = send(model, prompts, tokens, progress)
        totals = data["models"][model] = stats.metrics(records)
        data["lanes"][model] = Lane(model, records, lab.steps(EXECUTING[model], records)).to_json()
        # vLLM answers without the prompt.
        answers[model] = [
            text if text.startswith(prompt) else prompt + text
            for prompt, text in zip(prompts, (record.text for record in records), strict=True)
        ]
        first = f"{totals['time_to_first_token']['p50']:.0f}" if streaming else "-"
        rows.append(
            (model, f"{totals['benchmark_duration'] * 1e3:.1f}", first, f"{totals['output_token_throughput']:.1f}")
        )
        every += records
    print(format_table(rows, ("model", "total latency ms", "TTFT p50 ms", "tokens/s"), right=(1, 2, 3)))
    if not streaming:
        pairs = zip(answers[UNBATCHED], answers[ENGINE], strict=True)
        places = [divergence(tokenizer, one, other) for one, other in pairs]
        ties = [
            place is not None and is_near_tie(lab, tokenizer, text, place)
            for place, text in zip(places, answers[UNBATCHED], strict=True)
        ]
        data["divergence"] = [None if tie else place for place, tie in zip(places, ties, strict=True)]
        data["near_ties"] = sum(ties)
        apart = [place for place in data["divergence"] if place is not None]
        said = f"{len(prompts) - len(apart)} of {len(prompts)} answers of the engine are Hugging Face's"
        said += f" ({sum(ties)} of them up to a token where the two best are equally good)" if any(ties) else ""
        print(said + (f"; the first divergence is at token {min(apart)}" if apart else ""))
    lab.finish(data, every)


if __name__ == "__main__":
    main()
