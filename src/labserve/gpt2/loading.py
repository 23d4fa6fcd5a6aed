"""GPT-2 as a model's config.pbtxt wants it: what begins its sequences, and what computes their tokens."""

import json
from collections.abc import Callable
from functools import partial

import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labsched.features import InForce
from labserve.gpt2 import lookup, paged
from labserve.gpt2.decoders import CachedDecoder, Decoder, RecomputingDecoder
from labserve.gpt2.model import GPT2
from labserve.gpt2.own import file_beside
from labserve.gpt2.sequences import Sequence, new_sequence
from labserve.observe.recorder import note_in_force
from labserve.text.prompts import open_tokenizer
from labserve.triton import device, parameter


def count_slots(args: dict[str, str]) -> int:
    """How many sequences may run at a time: the parameter `slots`, else the model's `max_batch_size`."""
    return int(parameter(args, "slots", "0")) or int(json.loads(args["model_config"])["max_batch_size"])


def load_gpt2(args: dict[str, str]) -> tuple[Callable[[bytes, str], Sequence], Decoder]:
    """A function that begins a sequence, from a prompt and a request's parameters, and the decoder of the sequences.

    `args` are those of Triton's `initialize`.
    """
    begin, decoder, _ = load_with_tokenizer(args)
    return begin, decoder


def load_with_tokenizer(args: dict[str, str]) -> tuple[Callable[[bytes, str], Sequence], Decoder, Tokenizer]:
    """As :func:`load_gpt2`, and the tokenizer."""
    folder, precision = parameter(args, "model_path"), parameter(args, "precision", "auto")
    model = GPT2(folder, device(args), int(parameter(args, "threads")), precision)
    if model.shortfall:
        shown = InForce("precision", precision, model.computes_in, model.shortfall)
        note_in_force(parameter(args, "run_dir", ""), [shown])
    cached = parameter(args, "kv_cache", "true").lower() == "true"
    slots = count_slots(args)
    decoder: Decoder
    if blocks := file_beside(args, paged.FILE):
        count = int(parameter(args, "kv_blocks", "0")) or slots * -(-model.context // paged.SIZE)
        decoder = paged.PagedDecoder(model, count, blocks)
    elif not cached:
        decoder = RecomputingDecoder(model)
    elif own := file_beside(args, lookup.FILE):
        decoder = lookup.Lookup(model, slots, own)
    else:
        decoder = CachedDecoder(model, slots)
    pb_utils.Logger.log_info(f"{args['model_name']}: {model.describe()}; {decoder.describe()}")
    tokenizer = open_tokenizer(folder)
    begin = partial(new_sequence, tokenizer=tokenizer, context=model.context, end_id=model.end_id)
    return begin, decoder, tokenizer
