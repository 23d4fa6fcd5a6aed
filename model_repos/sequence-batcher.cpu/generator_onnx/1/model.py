"""Token ids to logits with ONNX Runtime: one forward pass for all requests of the batch.

On the gpu profile Triton's own onnxruntime backend serves the same file in place of this model.
"""

from pathlib import Path

import onnxruntime
import triton_python_backend_utils as pb_utils

from labserve.logits import LogitsModel
from labserve.triton import parameter


class TritonPythonModel(LogitsModel):
    input, output = "INPUT_TOKEN_IDS", "OUTPUT_LOGITS"

    def load(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameter(args, "threads"))
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        pb_utils.Logger.log_info(f"{args['model_name']}: ONNX Runtime {onnxruntime.__version__}")

    def forward(self, ids):
        return self.session.run([self.output], {self.input: ids})[0]
