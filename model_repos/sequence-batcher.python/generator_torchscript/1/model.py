"""Token ids to logits with TorchScript: one forward pass for all requests of the batch.

In NVIDIA's image Triton's own pytorch backend serves the same file in place of this model.
"""

from pathlib import Path

import torch
import triton_python_backend_utils as pb_utils

from labserve.logits import LogitsModel
from labserve.triton import device, parameter


class TritonPythonModel(LogitsModel):
    input, output = "INPUT__0", "OUTPUT__0"

    def load(self, args):
        torch.set_num_threads(int(parameter(args, "threads")))
        path = Path(args["model_repository"]) / args["model_version"] / "model.pt"
        self.device = device(args)
        self.module = torch.jit.load(path, map_location=self.device)
        pb_utils.Logger.log_info(f"{args['model_name']}: PyTorch {torch.__version__} on {self.device}")

    @torch.inference_mode()
    def forward(self, ids):
        # Every text is a token longer than the one before: an optimiser that compiles for each new shape never ends.
        with torch.jit.optimized_execution(False):
            return self.module(torch.from_numpy(ids).to(self.device)).cpu().numpy()
