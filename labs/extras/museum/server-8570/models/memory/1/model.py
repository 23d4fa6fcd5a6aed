"""Answers with the resident memory of the server, its parent process, in MiB."""

import os
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        pid = os.getppid()
        while "tritonserver" not in Path(f"/proc/{pid}/comm").read_text():  # a shell may stand between
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        memory = np.full((1, 1), pages * os.sysconf("SC_PAGE_SIZE") / 2**20, np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", memory)]) for _ in requests]
