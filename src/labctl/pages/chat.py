"""The chat page: Gradio's ChatInterface over a stack's text models, on loopback alone.

Gradio answers every process of this machine, and no other machine.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from labctl.pages.address import CHAT, listening_socket
from labctl.triton import conversation
from labkit.client.chat_template import ChatTemplate, end_id_of
from labkit.client.text_model import TextModel
from labkit.errors import LabError

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when Gradio is imported: nothing is sent anywhere
import gradio as gr

PROMPT, QUESTION = "The beginning of a text", "A question"  # the second to a model with a chat template
NEW_LINE = " (Shift+Enter begins a new line)"
NO_PROMPT = "There is nothing to continue: type the beginning of a text first."
FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["monospace"]}  # the machine's: no other server is asked
CSS = ".message pre, .message code {white-space: pre-wrap !important}"


class Dial(NamedTuple):
    """A slider of the page, with its initial value."""

    label: str
    least: float
    most: float
    step: float
    value: float

    def slider(self, name: str) -> gr.Slider:
        return gr.Slider(self.least, self.most, self.value, step=self.step, label=self.label, elem_id=name)


TOKENS = Dial("Most tokens", 1, 512, 1, 64)
#: By name. Top-k is on, so that a temperature alone asks for sampling everywhere.
DIALS = {
    "temperature": Dial("Temperature (0: always the likeliest token)", 0.0, 2.0, 0.05, 0.0),
    "top_k": Dial("Top-k (0: off)", 0, 200, 1, 50),
    "top_p": Dial("Top-p (1: off)", 0.05, 1.0, 0.05, 1.0),
    "repetition_penalty": Dial("Repetition penalty (1: off)", 0.5, 2.0, 0.05, 1.0),
    "seed": Dial("Seed (-1: another answer each time)", -1, 1000, 1, -1),
}
WHOLE_NUMBERS = ("top_k", "seed")


def chat_page(
    endpoint: str,
    names: Sequence[str],
    chosen: str,
    tokenizer_dir: str | None,
    title: str,
    note: str | None = None,
    halted: Callable[[], str | None] | None = None,
) -> gr.ChatInterface:
    """The page for the models ``names`` at ``endpoint``; models that do not continue a text are left out.

    A model that streams, and has a chat template, is asked with the whole chat; any other continues the last text.
    ``halted`` returns a message while the stack's clock stands still.

    Raises LabError: neither ``chosen`` nor another model can be used.
    """
    models: dict[str, TextModel] = {}
    for name in names:
        with contextlib.suppress(LabError):
            models[name] = TextModel.of(endpoint, name)
    if not models:
        TextModel.of(endpoint, chosen)  # raises the error that says why
    templates: dict[str, tuple[ChatTemplate, int | None]] = {}
    for name, found in models.items():
        folder = tokenizer_dir or found.tokenizer_dir
        if found.answers_alone and folder and (template := ChatTemplate.of(folder)):
            templates[name] = template, end_id_of(folder)
    dials = [name for name in DIALS if any(name in model.choices for model in models.values())]

    def answer(prompt: str, history: Any, model: str, tokens: float, *values: float) -> Iterator[str]:
        """The text as it grows, its speed in the last line, or the error below what came of the text."""
        if not prompt.strip():
            yield NO_PROMPT
            return
        yield (halted and halted()) or ""
        text, asked, hidden, end_id = "", prompt, "", None
        try:
            if model in templates:
                template, end_id = templates[model]
                asked = hidden = template.render([*earlier_turns(history), {"role": "user", "content": prompt}])
            sampling = sampling_values(dict(zip(dials, values, strict=True)))
            request = (endpoint, model, asked, int(tokens), sampling, tokenizer_dir)
            for part in conversation.ask_model(*request, standing=lambda: bool(halted and halted()), end_id=end_id):
                text = fence_markdown(part.text.removeprefix(hidden))
                yield f"{text}\n{part.speed}"
        except LabError as error:
            yield f"{text}\n{fence_markdown(str(error))}"

    label = (QUESTION if templates else PROMPT) + NEW_LINE
    return gr.ChatInterface(
        answer,
        title=title,
        description=note,
        chatbot=gr.Chatbot(show_label=False, height="60vh", elem_id="texts", buttons=["copy", "copy_all"]),
        textbox=gr.Textbox(
            label=label, placeholder=label, max_lines=8, submit_btn=True, stop_btn=True, elem_id="prompt"
        ),
        additional_inputs=[
            gr.Dropdown([*models], value=chosen if chosen in models else next(iter(models)), label="Model"),
            TOKENS.slider("tokens"),
            *(DIALS[name].slider(name) for name in dials),
        ],
        additional_inputs_accordion=gr.Accordion("Model and sampling", open=False),
        api_name="answer",
        analytics_enabled=False,
    )


def sampling_values(values: dict[str, float]) -> dict[str, Any]:
    """The sliders' values as the model takes them: whole numbers where it needs them, no seed below 0."""
    sampling = {name: int(value) if name in WHOLE_NUMBERS else float(value) for name, value in values.items()}
    if sampling.get("seed", 0) < 0:
        del sampling["seed"]
    return sampling


def fence_markdown(text: str) -> str:
    """The text as it is, for a page that renders Markdown: spaces and lines are kept."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def earlier_turns(history: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The turns of a chat as Gradio keeps them, without what the page has put around each answer."""
    turns = []
    for message in history:
        content = message["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        if message["role"] == "assistant":
            fence, _, rest = text.partition("\n")
            text = rest.rpartition(f"\n{fence}")[0]
        turns.append({"role": message["role"], "content": text})
    return turns


@contextlib.contextmanager
def serve_chat(page: gr.ChatInterface, port: int | None) -> Iterator[str]:
    """Serve the page for the time of a block; yields its address. Without a ``port``: its usual one, or a free one.

    Raises LabError: the port is taken.
    """
    with listening_socket(port, CHAT) as probe:
        port = probe.getsockname()[1]
    page.queue(default_concurrency_limit=8).launch(
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        footer_links=[],
        css=CSS,
        theme=gr.themes.Soft(**FONTS),
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        page.close(verbose=False)


def wait() -> None:
    """Until Ctrl-C."""
    threading.Event().wait()
