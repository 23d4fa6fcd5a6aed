"""The CPU engine: OpenVINO's intermediate form, exported by optimum for the GenAI pipeline (paged KV cache)."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labctl.engines.protocol import Builder, Option, Options, Report
from labctl.errors import LabError

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf", "transformers", "torch")
PRECISIONS: Mapping[str, dict[str, Any]] = {  # ours → the exporter's configuration
    "fp16": {"dtype": "fp16"},
    "fp32": {"dtype": "fp32"},
    "int8": {"quantization_config": {"bits": 8, "sym": False}},
}


class OpenVino:
    """Runs on any x86-64 CPU; ``precision`` is that of the stored weights, not of the arithmetic."""

    name = "openvino"
    recipe = "2026.4/text-generation-with-past"
    options: Mapping[str, Option] = {"precision": Option("fp16", tuple(PRECISIONS))}
    essential = (
        "openvino_model.xml",
        "openvino_model.bin",
        "openvino_tokenizer.xml",
        "openvino_detokenizer.xml",
        "tokenizer.json",
    )

    def make(
        self, weights: Path, options: Options, target: Path, report: Report, builder: Builder | None
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

        report(f"exporting with {options['precision']} weights")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's remarks on transformers' own code
            logging.disable(logging.WARNING)
            try:
                main_export(
                    str(weights),
                    target,
                    task="text-generation-with-past",
                    ov_config=OVConfig(**PRECISIONS[options["precision"]]),
                    convert_tokenizer=False,
                    stateful=True,
                )
            finally:
                logging.disable(logging.NOTSET)
        report("converting the tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(weights)
        encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
        save_model(encoder, target / "openvino_tokenizer.xml")
        save_model(decoder, target / "openvino_detokenizer.xml")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (weights / name).is_file() and not (target / name).is_file():
                shutil.copyfile(weights / name, target / name)
        return {"target": "cpu", "versions": {name: version(name) for name in PACKAGES}}
