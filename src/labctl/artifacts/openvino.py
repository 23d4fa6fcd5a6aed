"""The CPU engine: OpenVINO's intermediate form, exported by optimum for the GenAI pipeline (paged KV cache)."""

from __future__ import annotations

import gc
import logging
import shutil
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labctl.artifacts.protocol import Builder, Option, Options, Tell
from labkit.disk import need_space
from labkit.errors import LabError

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf", "transformers", "torch")
PRECISIONS = ("fp16", "fp32", "int8")


class OpenVino:
    """Runs on any x86-64 CPU; ``precision`` is that of the stored weights, not of the arithmetic."""

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

    def make(
        self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None
    ) -> Mapping[str, Any]:
        """Trace, convert and save, right here: needs torch, transformers and optimum-intel, and no ``builder``."""
        try:
            from openvino import save_model
            from openvino_tokenizers import convert_tokenizer
            from optimum.exporters.openvino import main_export
            from optimum.intel import OVConfig
            from transformers import AutoTokenizer
        except ImportError as error:
            remedy = "make setup, or use --runtime compose"
            raise LabError("engines cannot be built in this environment", str(error), remedy) from None

        size = sum(path.stat().st_size for path in weights.glob("*.safetensors"))
        need_space(target, 2 * size)  # the engine, and beside it the old form while the weights are compressed
        tell(f"exporting with {options['precision']} weights")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's remarks on transformers' own code
            logging.disable(logging.WARNING)
            gc.freeze()  # the exporter collects four times, and would look at all that torch has imported: 1 s
            try:
                main_export(
                    str(weights),
                    target,
                    task="text-generation-with-past",
                    ov_config=OVConfig(dtype="fp16" if options["precision"] == "fp16" else "fp32"),
                    convert_tokenizer=False,
                    stateful=True,
                )
            finally:
                gc.unfreeze()
                logging.disable(logging.NOTSET)
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
