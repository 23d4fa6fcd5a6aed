"""How a text model wants to be asked, read from the configuration that the running server itself reports.

Text models differ on the wire: limits are request parameters or tensors, with or without a batch dimension, under any
name. What an input is for follows from its type: the first text that must be sent is the prompt, the first whole number
the limit, further texts are lists of words. A person who types ``labctl infer`` or ``labctl bench`` need not know that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from labkit import proxies
from labkit.client.ask import ASK_S, GONE, InFlightClient, connect, impossible_end_id
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord

# How a token is chosen. As a tensor it may be called otherwise, as long as its name ends so: `runtime_top_k`.
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")
_BY_PARAMETER = ("temperature", "top_k", "top_p", "seed")
LIMIT = "max_tokens"  # how the name of an optional limit ends
_WHOLE = ("INT32", "UINT32", "INT64", "UINT64")
END_ID = "end_id"
LOGPROBS = "logprobs"  # parameter and output, as vLLM calls them
STRUCTURED = "structured_outputs"  # parameter, as vLLM calls it
PARAMETERS = "sampling_parameters"  # an optional input of vllm_model's, and no other model's
TELL_END = "return_finish_reason"  # an optional input of vllm_model's: the answer then says why it ended


@dataclass(frozen=True)
class Input:
    """One input tensor that must be sent: its datatype as Triton names it, its shape for one request."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def filled(self, value: Any, kind: Any = grpcclient.InferInput) -> Any:
        """It with this value, as an object of a client's class ``kind``."""
        tensor = kind(self.name, self.shape, self.datatype)
        tensor.set_data_from_numpy(np.full(self.shape, value, dtype=triton_to_np_dtype(self.datatype)))
        return tensor


@dataclass(frozen=True)
class TextModel:
    """A model that continues a text.

    Attributes:
        decoupled: it answers token by token, with what is new alone.
        prompt: the input that holds the text.
        limit: the input that holds the number of tokens; "" if that is a request parameter.
        sampling: the inputs that say how a token is chosen, by the names of ``SAMPLING``; a model without a limit
            takes them as parameters.
        end: the input for the token that ends a text: the one that the model's ``end_input`` parameter names, else
            ``end_id``, as TensorRT-LLM's ensembles call it.
        tells_end: it is asked why an answer ended, and says so (``RequestRecord.finish_reason``).
        end_text: with which every answer ends, where the model's ``end_text`` parameter says so.
        cached: Triton may answer from its response cache. Such a model cannot be asked over a stream: Triton 2.51 says
            "response output count mismatch" (upstream's issue 4362).
        logprobs: its output for the log probabilities of tokens, which it gives if a request has the parameter
            ``logprobs``.
        return_logprobs: the input that must also ask for them, as in vLLM's model.
        structured: it has the parameter ``structured_outputs``: its answers can follow a JSON schema.
        scheduling: "iterative" if the model is scheduled again for each token, "dynamic" if a streamed batch runs from
            its beginning to its end, else None.
        tokenizer_dir: where the server has the model's tokenizer; None if its configuration does not say.
    """

    name: str
    inputs: Mapping[str, Input]
    prompt: str
    limit: str
    output: str
    decoupled: bool
    sampling: Mapping[str, Input] = field(default_factory=dict)
    end: Input | None = None
    tokenizer_dir: str | None = None
    end_text: str | None = None
    tells_end: bool = False
    cached: bool = False
    logprobs: str | None = None
    return_logprobs: Input | None = None
    structured: bool = False
    scheduling: str | None = None

    @property
    def by_parameter(self) -> bool:
        """Whether limits and sampling are request parameters, not tensors."""
        return not self.limit

    @property
    def answers_alone(self) -> bool:
        """Whether an answer is what is new alone, without the prompt in front."""
        return self.decoupled

    @property
    def choices(self) -> Sequence[str]:
        """The parameters of ``SAMPLING`` that the model has."""
        return _BY_PARAMETER if self.by_parameter else tuple(self.sampling)

    @classmethod
    def of(cls, endpoint: str, name: str) -> TextModel:
        """Ask the server at ``endpoint`` (gRPC).

        Raises:
            LabError: the server does not answer, or the model takes no text.
        """
        with connect(endpoint) as client:
            try:
                config = client.get_model_config(name, client_timeout=ASK_S).config
                parts = _parts(client, config)
            except InferenceServerException as error:
                message = str(error.message())
                if error.status() == GONE:
                    why = "nothing listens there" if "Connection refused" in message else message
                    if proxy := proxies.for_grpc(endpoint):
                        why = f"it was asked through the proxy that {proxy} names: {message}"
                    remedy = "labctl status says whether it is up"
                    raise LabError(
                        f"the server at {endpoint} does not answer", why, remedy, code="server-silent"
                    ) from error
                raise LabError(
                    f"Triton returned no configuration for {name}", message, code="model-unconfigured"
                ) from error
        inputs = {
            item.name: Input(item.name, wire_datatype(item.data_type), (1, 1) if config.max_batch_size else (1,))
            for item in config.input
        }
        sent = {item.name: inputs[item.name] for item in config.input if not item.optional or _is_sent(item.name)}
        sampling = {
            parameter: item
            for parameter in SAMPLING
            for name, item in inputs.items()
            if name == parameter or name.endswith(f"_{parameter}")
        }
        prompt = next((name for name, item in sent.items() if item.datatype == "BYTES"), "")
        limit = next((name for name, item in sent.items() if item.datatype in _WHOLE), "")
        output = next((item.name for item in config.output if wire_datatype(item.data_type) == "BYTES"), "")
        decoupled = any(part.model_transaction_policy.decoupled for part in parts)
        if not (output and prompt and (limit or decoupled)):
            raise LabError(
                f"{name} is not a text-generation model", f"its inputs: {', '.join(sent)}", code="text-model-not"
            )
        scheduling = None
        if config.sequence_batching.iterative_sequence:
            scheduling = "iterative"
        elif decoupled and config.HasField("dynamic_batching"):
            scheduling = "dynamic"
        return cls(
            name,
            sent,
            prompt,
            limit,
            output,
            decoupled=decoupled,
            sampling=sampling,
            end=inputs.get(_parameter(config, "end_input") or END_ID),
            tokenizer_dir=next((folder for part in parts if (folder := _parameter(part, "tokenizer_dir"))), None),
            end_text=_parameter(config, "end_text"),
            tells_end=TELL_END in inputs,
            cached=config.response_cache.enable,
            logprobs=LOGPROBS if decoupled and LOGPROBS in {item.name for item in config.output} else None,
            return_logprobs=inputs.get(f"return_{LOGPROBS}"),
            structured=PARAMETERS in inputs or any(_parameter(part, "engine") == "vllm" for part in parts),
            scheduling=scheduling,
        )

    def send(
        self,
        client: InFlightClient,
        prompt: str,
        tokens: int,
        to_the_end: bool = False,
        sampling: Mapping[str, Any] | None = None,
        id: str = "",
        priority: int = 0,
        tenant: str | None = None,
        end_id: int | None = None,
    ) -> RequestRecord:
        """Ask for ``tokens`` more tokens.

        Args:
            to_the_end: an end-of-text token does not end the answer.
            sampling: values by the names of ``SAMPLING``; one that the model does not heed is left out.
            id: the request's, one of ``request_id``; "": a new one.
            priority: 1 is the highest; 0 leaves it to the model.
            tenant: whose it is, for a model that takes more parameters than its own.
            end_id: the token that ends the answer, for a model that must be told; None: it is not.
        """
        inputs, parameters = self.wire(prompt, tokens, to_the_end, sampling, end_id=end_id)
        if tenant is not None and not self.by_parameter:
            parameters["tenant"] = tenant
        return client.send_inputs(
            self.name,
            prompt,
            inputs,
            output=self.output,
            tokens=0 if self.decoupled else tokens,
            id=id,
            priority=priority,
            **parameters,
        )

    def wire(
        self,
        prompt: str,
        tokens: int,
        to_the_end: bool = False,
        sampling: Mapping[str, Any] | None = None,
        kind: Any = grpcclient.InferInput,
        end_id: int | None = None,
    ) -> tuple[list[Any], dict[str, Any]]:
        """The input tensors, of the class ``kind``, and the request parameters; other arguments as of :meth:`send`."""
        heeded = {name: value for name, value in (sampling or {}).items() if name in self.choices}
        tensors = [
            item.filled(self._value(item, prompt, tokens), kind)
            for name, item in self.inputs.items()
            if self.decoupled or not _streams(name)
        ]
        if self.by_parameter:
            # As text, which every version of the client can send as a parameter.
            texts = {name: str(value) for name, value in heeded.items()}
            return tensors, {"max_tokens": tokens, "ignore_eos": to_the_end, **texts}
        tensors += [self.sampling[name].filled(value, kind) for name, value in heeded.items()]
        if self.end and to_the_end:
            end_id = impossible_end_id(triton_to_np_dtype(self.end.datatype))
        if self.end and end_id is not None:
            tensors.append(self.end.filled(end_id, kind))
        return tensors, {}

    def _value(self, item: Input, prompt: str, tokens: int) -> Any:
        if item.name == self.prompt:
            return prompt.encode()
        if item.name == self.limit:
            return tokens
        if _streams(item.name) or item.name == TELL_END:
            return True
        return b"" if item.datatype == "BYTES" else 0  # lists of bad and stop words: none


def set_token_count(record: RequestRecord, model: TextModel, asked: int, count: Callable[[str], int]) -> None:
    """Set how many tokens an answer has: all that were asked for, or as many as its text where it may have ended early.

    Raises:
        LabError: ``model`` tells why an answer ended, and this one ended for neither of these reasons.
    """
    if record.finish_reason == "length":
        record.tokens = asked
    elif record.finish_reason == "stop" or not model.tells_end:
        record.tokens = max(1, count(record.text if model.answers_alone else record.text.removeprefix(record.prompt)))
    else:
        raise LabError(
            f"{record.label} ended with finish_reason '{record.finish_reason}'",
            "neither length nor stop",
            code="finish-reason-unknown",
        )


def _is_sent(name: str) -> bool:
    """Whether an input is sent although it is optional: limit, stream, and why an answer ended."""
    return _streams(name) or name.endswith(LIMIT) or name == TELL_END


def _streams(name: str) -> bool:
    """Whether an input asks for the answer token by token (`stream`, `streaming`)."""
    return "stream" in name


def wire_datatype(number: int) -> str:
    """The wire's word for a configuration's data type: INT32 for TYPE_INT32, BYTES for TYPE_STRING."""
    name = str(model_config_pb2.DataType.Name(number)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _parts(client: Any, config: Any) -> list[Any]:
    """A model's configuration and those of an ensemble's steps: it answers token by token when one of them does."""
    steps = (
        client.get_model_config(step.model_name, client_timeout=ASK_S).config
        for step in config.ensemble_scheduling.step
    )
    return [config, *(part for step in steps for part in _parts(client, step))]


def _parameter(config: Any, name: str) -> str | None:
    """Return a parameter of a configuration, unless it is empty."""
    return str(config.parameters[name].string_value) or None if name in config.parameters else None
