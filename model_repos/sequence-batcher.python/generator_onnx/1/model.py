"""Token ids to logits with ONNX Runtime: one forward pass for all requests of the batch.

In NVIDIA's image Triton's own onnxruntime backend serves the same file in place of this model. On a GPU this model
computes there only with the package onnxruntime-gpu; onnxruntime itself has none but the CPU.
"""

from pathlib import Path

import onnxruntime
import triton_python_backend_utils as pb_utils

from labserve.logits import LogitsModel
from labserve.triton import device, parameter


class TritonPythonModel(LogitsModel):
    input, output = "INPUT_TOKEN_IDS", "OUTPUT_LOGITS"

    def load(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameter(args, "threads"))
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the other models need the cores
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(path, options, providers=providers(device(args)))
        where = self.session.get_providers()[0]
        pb_utils.Logger.log_info(f"{args['model_name']}: ONNX Runtime {onnxruntime.__version__}, {where}")

    def forward(self, ids):
        return self.session.run([self.output], {self.input: ids})[0]


def providers(device):
    """ONNX Runtime's providers, in order of preference."""
    kind, _, number = device.partition(":")
    gpu = [("CUDAExecutionProvider", {"device_id": number})] if kind == "cuda" else []
    return [*(p for p in gpu if p[0] in onnxruntime.get_available_providers()), "CPUExecutionProvider"]
