"""A text model as the OpenAI API knows it."""

from __future__ import annotations

from labkit.clients.text_model import Input, TextModel


def text_model(*sampling: str, by_parameter: bool = False, end: bool = False) -> TextModel:
    """A model with these sampling inputs; ``by_parameter``: as lab 02's, without any."""
    inputs = {"text": Input("text", "BYTES", (1, 1))} | ({} if by_parameter else {"n": Input("n", "UINT32", (1, 1))})
    kinds = {name: Input(name, "UINT64" if name in ("seed", "top_k") else "FP32", (1, 1)) for name in sampling}
    return TextModel(
        "m",
        inputs,
        "text",
        "" if by_parameter else "n",
        "out",
        True,
        kinds,
        Input("end_id", "UINT32", (1, 1)) if end else None,
    )
