import json
import os
import signal
import time

import triton_python_backend_utils as pb_utils


def serve(seconds):
    pass


def slow(seconds):
    time.sleep(seconds)


def refuse(seconds):
    raise RuntimeError("no luck today")


def kill(seconds):
    """The server, as the kernel's OOM killer or a person would; it is this stub's parent."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def hog(seconds):
    """More memory than the test's container may have, and never more than two gigabytes."""
    hoard = [b"x" * 2**24 for _ in range(128)]
    del hoard


class TritonPythonModel:
    def initialize(self, args):
        told = json.loads(args["model_config"])["parameters"]
        globals()[told["behaviour"]["string_value"]](float(told["seconds"]["string_value"]))

    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]) for text in texts]
