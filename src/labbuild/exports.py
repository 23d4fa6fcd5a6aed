"""The CPU engine: OpenVINO's intermediate form, exported by optimum for the GenAI pipeline (paged KV cache)."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labbuild.protocol import Builder, EngineCompiler, Facts, Option, Options, Tell
from labkit.disk import need_space
from labkit.errors import LabError

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf", "transformers", "torch")
PRECISIONS = ("fp16", "fp32", "int8")
SHAPES = ((1, 1), (1, 7), (2, 5), (3, 32), (4, 1), (8, 19))  # (batch, length) at which the export is compared
TOLERANCE = 1e-3  # most that a logit may differ; fp32 sums in another order differ by some 1e-6 of its size
SEED = 7
Run = Callable[[Any], Any]  # ids [batch, length] → logits [batch, length, vocabulary], both torch tensors


class OpenVino(EngineCompiler):
    """Runs on any CPU of its architecture; ``precision`` is that of the stored weights, not of the arithmetic."""

    name = "openvino"
    recipe = "2026.4/text-generation-with-past/2"
    options: Mapping[str, Option] = {"precision": Option("fp16", PRECISIONS)}
    essential = (
        "openvino_model.xml",
        "openvino_model.bin",
        "openvino_tokenizer.xml",
        "openvino_detokenizer.xml",
        "tokenizer.json",
    )

    def make(self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None) -> Facts:
        """Trace, convert and save, right here: needs torch, transformers and optimum-intel, and no ``builder``."""
        with _libraries("engines cannot be built in this environment"):
            from openvino import save_model
            from openvino_tokenizers import convert_tokenizer
            from optimum.exporters.openvino import main_export
            from optimum.intel import OVConfig
            from transformers import AutoTokenizer

        size = sum(path.stat().st_size for path in weights.glob("*.safetensors"))
        need_space(target, 2 * size)  # the engine, and beside it the old form while the weights are compressed
        tell(f"exporting with {options['precision']} weights")
        with _without_remarks():
            gc.freeze()  # the exporter collects four times, and would look at all that torch has imported: 1 s
            main_export(
                str(weights),
                target,
                task="text-generation-with-past",
                ov_config=OVConfig(dtype="fp16" if options["precision"] == "fp16" else "fp32"),
                convert_tokenizer=False,
                stateful=True,
            )
            gc.unfreeze()
        if options["precision"] == "int8":
            tell("compressing the weights to 8 bits")
            _compress(target / "openvino_model.xml")
        tell("converting the tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(weights)
        encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
        save_model(encoder, target / "openvino_tokenizer.xml")
        save_model(decoder, target / "openvino_detokenizer.xml")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (weights / name).is_file() and not (target / name).is_file():
                shutil.copyfile(weights / name, target / name)
        return {"target": "cpu", "versions": {name: version(name) for name in PACKAGES}}


def _compress(model: Path) -> None:
    """Store every weight in 8 bits, in place (the exporter's own quantisation is not reached by its Python call)."""
    import nncf
    from openvino import Core, save_model

    smaller = model.with_name("smaller.xml")
    compressed = nncf.compress_weights(Core().read_model(model), mode=nncf.CompressWeightsMode.INT8_ASYM)
    save_model(compressed, smaller, compress_to_fp16=False)
    del compressed  # it may still read the old file
    for suffix in (".xml", ".bin"):
        smaller.with_suffix(suffix).replace(model.with_suffix(suffix))


class Gpt2Export(EngineCompiler):
    """The steps that both formats share: load, trace, compare. Their only file is the essential one."""

    recipe = "gpt2-logits/1"
    packages: tuple[str, ...] = ("torch", "transformers")

    def make(self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None) -> Facts:
        """Export, then compare at several shapes. Needs torch and transformers, and no ``builder``.

        Raises:
            LabError: not a GPT-2, or what was exported does not compute what the original computes.
        """
        with _libraries("models cannot be exported in this environment"):
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging as remarks

        tell("loading the original")
        remarks.disable_progress_bar()
        original = AutoModelForCausalLM.from_pretrained(weights, local_files_only=True, dtype=torch.float32).eval()
        if original.config.model_type != "gpt2":
            raise LabError(
                f"{weights} is not a GPT-2",
                f"its model type is {original.config.model_type}",
                "--set model=...",
                code="weights-not-gpt2",
            )
        path = target / self.essential[0]
        tell(f"exporting {path.name}")
        with _without_remarks(), torch.no_grad():
            self.export(logits_module(original), path)
        tell("comparing with the original")
        by_shape = logit_differences(original, self.load(path))
        difference = max(by_shape.values())
        if difference > TOLERANCE:
            raise LabError(
                f"the {self.name} export does not compute what the model computes",
                f"its logits differ by up to {difference:g} (at most {TOLERANCE:g} is rounding)",
                code="export-inexact",
            )
        tell(f"largest difference of a logit at {len(by_shape)} shapes: {difference:.1e}")
        return {
            "target": "any",
            "max_abs_difference": difference,
            "differences": {f"{batch}x{length}": value for (batch, length), value in by_shape.items()},
            "vocab_size": int(original.config.vocab_size),
            "versions": {name: version(name) for name in self.packages},
        }

    def export(self, module: Any, path: Path) -> None:
        """Write ``module`` (ids → logits) to ``path``."""
        raise NotImplementedError

    def load(self, path: Path) -> Run:
        """The exported file as a function, run by the library that will serve it."""
        raise NotImplementedError


class Onnx(Gpt2Export):
    """For ONNX Runtime, in one file with its weights (so at most 2 GB: GPT-2 up to medium)."""

    name = "onnx"
    essential = ("model.onnx",)
    packages = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
    opset = 18

    def export(self, module: Any, path: Path) -> None:
        import torch

        # PyTorch 2.9 takes a batch of 1 for another case, and promises nothing for it; the comparison shows it is none.
        batch = torch.export.Dim("batch", min=2, max=4096)
        length = torch.export.Dim("length", max=module.config.n_positions)
        torch.onnx.export(
            module,
            (_example(module),),
            path,
            dynamo=True,
            opset_version=self.opset,
            input_names=["INPUT_TOKEN_IDS"],
            output_names=["OUTPUT_LOGITS"],
            dynamic_shapes={"ids": {0: batch, 1: length}},
            external_data=False,
            optimize=True,
            verbose=False,
        )

    def load(self, path: Path) -> Run:
        import onnxruntime
        import torch

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda ids: torch.from_numpy(session.run(["OUTPUT_LOGITS"], {"INPUT_TOKEN_IDS": ids.numpy()})[0])


class TorchScript(Gpt2Export):
    """For libtorch: the traced graph. Its inputs have no names, hence Triton's ``INPUT__0`` and ``OUTPUT__0``."""

    name = "torchscript"
    essential = ("model.pt",)

    def export(self, module: Any, path: Path) -> None:
        import torch

        torch.jit.save(torch.jit.trace(module, _example(module), check_trace=False), path)

    def load(self, path: Path) -> Run:
        import torch

        run: Run = torch.jit.load(path, map_location="cpu")
        return run


def logits_module(original: Any) -> Any:
    """The model as a module from ids to logits: its own layers, under a mask and positions made of ``ids`` alone.

    A trace of transformers' own mask would keep the length and the device of the example. This one serves any.
    """
    import torch

    class Logits(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.gpt2, self.head = original.transformer, original.lm_head
            self.config = original.config

        def forward(self, ids: Any) -> Any:
            positions = (ids * 0 + 1).cumsum(1) - 1
            sees = positions[:, None, :, None] >= positions[:, None, None, :]  # [batch, 1, query, key]: not ahead
            hidden = self.gpt2.wte(ids) + self.gpt2.wpe(positions)
            for block in self.gpt2.h:
                hidden = block(hidden, attention_mask=sees)
            return self.head(self.gpt2.ln_f(hidden))

    return Logits().eval()


def logit_differences(original: Any, run: Run) -> dict[tuple[int, int], float]:
    """The largest difference of any logit, by (batch, length). It is infinite for NaN, or a result of another shape."""
    import torch

    draw = torch.Generator().manual_seed(SEED)
    longest = int(original.config.n_positions)
    by_shape = {}
    shapes = [(batch, min(length, longest)) for batch, length in SHAPES]
    for batch, length in (*shapes, (1, longest)):
        ids = torch.randint(original.config.vocab_size, (batch, length), generator=draw)
        with torch.no_grad():
            expected, given = original(ids).logits, run(ids)
        same = given.shape == expected.shape and bool(torch.isfinite(given).all())
        by_shape[batch, length] = float((expected - given).abs().max()) if same else float("inf")
    return by_shape


def _example(module: Any) -> Any:
    """A batch to trace with: neither dimension is 1, which an exporter would take for a constant."""
    import torch

    draw = torch.Generator().manual_seed(SEED)
    return torch.randint(module.config.vocab_size, (2, 6), generator=draw)


@contextmanager
def _libraries(failed: str) -> Iterator[None]:
    """For imports that a light install does not have. Raises LabError: ``failed``, and what is missing."""
    try:
        yield
    except ImportError as error:
        raise LabError(
            failed, str(error), "make setup, or use --runtime compose", code="export-libraries-missing"
        ) from None


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Without the tracers' remarks on transformers' own code.

    optimum ends `logging.disable` in the middle of its export, so the libraries' own levels are set as well.
    """
    libraries = [logging.getLogger(name) for name in ("transformers", "optimum", "nncf")]
    levels = [library.level for library in libraries]
    logging.disable(logging.WARNING)
    try:
        for library in libraries:
            library.setLevel(logging.ERROR)
        with (
            Path(os.devnull).open("w") as nowhere,
            warnings.catch_warnings(action="ignore"),
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.setLevel(level)
        logging.disable(logging.NOTSET)
