"""The chat page: a prompt, the answer as it comes, and the dials of sampling. Made with Gradio."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from starlette.middleware import Middleware

from labctl.pages.address import CHAT, listening
from labctl.pages.chat_gate import MAX_TEXT, SCHEDULER, Gate, is_history
from labkit.clients import conversation
from labkit.clients.text_model import TextModel
from labkit.errors import LabError

if TYPE_CHECKING:
    import gradio as gr

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # nothing is sent to anybody
NOTHING = "There is nothing to continue: type the beginning of a text first."
History = list[dict[str, str]]
CSS = """
.message code, .message pre {white-space: pre-wrap !important; background: none !important}
.message pre {padding: 0 30px 0 0 !important} .message code {padding: 0 !important}
.prose h1 {font-size: 1.3em !important} .dark #scheduler {color: #a5b4fc}
@media (prefers-reduced-motion: reduce) {* {animation: none !important; transition: none !important}}
"""
TEXTS = "max(160px, calc(100vh - 440px))"  # the button below the texts is in the window
# Colours of the theme that are too near to their background otherwise: a contrast of less than 4.5.
CONTRAST = {
    "block_title_text_color": "*primary_700",
    "body_text_color_subdued": "*neutral_600",
    "button_primary_background_fill": "*primary_600",
    "button_primary_background_fill_hover": "*primary_700",
    "button_primary_background_fill_dark": "*primary_600",
}
FONTS = ["system-ui", "sans-serif"]  # of the machine: the page asks no other server
Dial = tuple[str, float, float, float, float]  # label, least, most, step, at first
TOKENS: Dial = ("Tokens at most", 1, 512, 1, 64)
#: By name. Top-k is on, so that a temperature alone asks for sampling everywhere.
DIALS: dict[str, Dial] = {
    "temperature": ("Temperature (0: always the likeliest token)", 0.0, 2.0, 0.05, 0.0),
    "top_k": ("Top-k (0: off)", 0, 200, 1, 50),
    "top_p": ("Top-p (1: off)", 0.05, 1.0, 0.05, 1.0),
    "repetition_penalty": ("Repetition penalty (1: off)", 0.5, 2.0, 0.05, 1.0),
    "seed": ("Seed (-1: another answer each time)", -1, 1000, 1, -1),
}


def _gradio() -> Any:
    """Gradio without what it does for editors: at each import it reads all its sources, to write stubs beside them.

    That takes more than a second, half of the import.
    """
    where = inspect.getfile

    def getfile(thing: Any) -> str:
        if isinstance(thing, type) and thing.__module__.startswith("gradio."):
            raise OSError("not now")
        return where(thing)

    with mock.patch.object(inspect, "getfile", getfile):
        import gradio
    return gradio


class Scheduler(NamedTuple):
    """The scheduler of the same stack."""

    command: str  # opens its live page
    address: Callable[[], str]  # of that page; "" while it is not open
    still: Callable[[], str] = str  # says that its clock stands still; "" while it runs


class Page:
    """The page of one stack. ``models``: those of the stack; the ones that continue texts can be chosen."""

    def __init__(
        self,
        endpoint: str,
        models: Sequence[str],
        chosen: str,
        tokenizer_dir: str,
        title: str,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.endpoint, self.tokenizer_dir, self.title, self.scheduler = endpoint, tokenizer_dir, title, scheduler
        self.models: dict[str, TextModel] = {}
        for name in models:
            with contextlib.suppress(LabError):
                self.models[name] = TextModel.of(endpoint, name)
        if not self.models:
            TextModel.of(endpoint, chosen)  # says why
        self.chosen = chosen if chosen in self.models else next(iter(self.models))
        self.dials = [name for name in DIALS if any(name in model.choices for model in self.models.values())]

    def build(self) -> gr.Blocks:
        gr = _gradio()

        def slider(name: str, label: str, least: float, most: float, step: float, usual: float) -> Any:
            return gr.Slider(least, most, usual, step=step, label=label, elem_id=name)

        with gr.Blocks(title=self.title, analytics_enabled=False) as blocks:
            gr.Markdown(f"# {self.title}")
            if self.scheduler:
                gr.HTML(
                    f'<a id="scheduler" href="{SCHEDULER}" target="_blank" rel="noopener">The scheduler at work</a>'
                    f" (<code>{self.scheduler.command}</code>)"
                )
            with gr.Row():
                with gr.Column(scale=3):
                    chat = gr.Chatbot(show_label=False, height=TEXTS, elem_id="texts", buttons=["copy_all"])
                    speed = gr.Markdown("", elem_id="speed")
                    prompt = gr.Textbox(
                        label="The beginning of a text (Shift+Enter continues it)",
                        lines=3,
                        max_lines=8,
                        elem_id="prompt",
                        autofocus=True,
                    )
                    with gr.Row():
                        send = gr.Button("Continue it", variant="primary", elem_id="send")
                        gr.ClearButton([chat, speed], value="Clear")
                with gr.Column(scale=1):
                    model = gr.Dropdown([*self.models], value=self.chosen, label="Model", elem_id="model")
                    tokens = slider("tokens", *TOKENS)
                    dials = [slider(name, *DIALS[name]) for name in self.dials]
            for event in (send.click, prompt.submit):
                event(self.answer(self.dials), [prompt, chat, model, tokens, *dials], [chat, speed])
        return blocks

    def accepts(self, prompt: Any, history: Any, model: Any, *numbers: Any) -> bool:
        """Whether these are values that the page's fields can hold. Raises TypeError where some are missing."""
        ranges = [(least, most) for _, least, most, *_ in (TOKENS, *(DIALS[name] for name in self.dials))]
        return (
            isinstance(prompt, str)
            and len(prompt) <= MAX_TEXT
            and is_history(history)
            and isinstance(model, str)
            and model in self.models
            and [type(number) in (int, float) for number in numbers] == [True] * len(ranges)
            and all(least <= number <= most for number, (least, most) in zip(numbers, ranges, strict=True))
        )

    def answer(self, names: Sequence[str]) -> Any:
        """What the button does; ``names`` are the dials that the page has."""

        def run(prompt: str, history: History, model: str, tokens: float, *values: float) -> Iterator[Any]:
            if not prompt.strip():
                yield history, NOTHING
                return
            history = [*history, {"role": "user", "content": fence(prompt)}]
            # In the place of the last answer's speed: whether an answer can come at all.
            yield history, self.scheduler.still() if self.scheduler else ""
            sampling = wishes(dict(zip(names, values, strict=True)))
            shown = history
            try:
                for part in conversation.ask(self.endpoint, model, prompt, int(tokens), sampling, self.tokenizer_dir):
                    shown = [*history, {"role": "assistant", "content": fence(part.text)}]
                    yield shown, part.speed
            except LabError as error:  # below what came of the text until then
                yield [*shown, {"role": "assistant", "content": describe_error(error)}], ""

        return run


def wishes(values: dict[str, float]) -> dict[str, Any]:
    """The sliders' values as the model takes them: whole numbers where it needs them, no seed below 0."""
    whole = ("top_k", "seed")
    said = {name: int(value) if name in whole else float(value) for name, value in values.items()}
    return {name: value for name, value in said.items() if name != "seed" or value >= 0}


def describe_error(error: LabError) -> str:
    """An error as the page shows it; what Triton says is shown as it is."""
    parts = [f"**{plain(error.what)}**", plain(error.why), plain(error.remedy)]
    return "\n\n".join(part for part in parts if part)


def plain(text: str) -> str:
    """The text with no Markdown or HTML of its own."""
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", text)


def fence(text: str) -> str:
    """The text as it is: no Markdown of its own, spaces and lines kept."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


@contextlib.contextmanager
def serve(page: Page, address: str, port: int | None = None) -> Iterator[str]:
    """The page for the time of a block; yields where it is. Without a ``port``: its usual one, or a free one.

    Raises LabError: the port is taken.
    """
    gr = _gradio()
    with listening(address, port, CHAT) as probe:
        port = probe.getsockname()[1]
    blocks = page.build()
    functions = [function["id"] for function in blocks.config["dependencies"] if function["backend_fn"]]
    gate = Middleware(Gate, page=page, functions=functions, exposed=address != "127.0.0.1")
    theme = gr.themes.Soft(font=FONTS, font_mono=["monospace"]).set(**CONTRAST)
    blocks.queue(default_concurrency_limit=8).launch(
        server_name=address,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        css=CSS,
        theme=theme,
        footer_links=[],
        show_error=True,
        app_kwargs={"middleware": [gate]},
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        blocks.close(verbose=False)


def wait() -> None:
    """Until Ctrl-C."""
    threading.Event().wait()
