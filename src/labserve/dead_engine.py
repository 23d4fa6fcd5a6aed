"""The end of a server whose engine is dead. Triton calls a model ready also then, and even when its process has ended.

So that probes, `labctl status` and clients see it, the whole server ends; `labctl restart` or a cluster begins it anew.
"""

import os
import signal
import sys

import triton_python_backend_utils as pb_utils

FAILED_STEPS = 5  # in a row
# PyTorch's words and those of Triton, the compiler: after such an error, each later call of the process fails too.
LOST = ("CUDA error", "Triton Error [CUDA]")


class EngineFailures:
    """Counts the failed steps of an engine.

    Args:
        forgiving: whether a learner's own file may be why steps fail: then only the device's errors count.
    """

    def __init__(self, forgiving: bool) -> None:
        self._forgiving, self._count = forgiving, 0

    def computed(self) -> None:
        """A step did not fail."""
        self._count = 0

    def failed(self, error: BaseException) -> None:
        """A step failed, and its requests have their answers."""
        self._count += 1
        end_if_lost(error)
        if self._count >= FAILED_STEPS and not self._forgiving:
            end_dead_server(f"{self._count} steps in a row have failed")

    def hung(self, where: str) -> None:
        """A step does not return."""
        if not self._forgiving:
            end_dead_server(f"a step does not return: {where}")


def end_if_lost(error: BaseException | None) -> None:
    """End the server where an error, or one that it came from, says that the GPU is lost to this process."""
    while error is not None:
        if any(words in str(error) for words in LOST):
            end_dead_server(str(error).splitlines()[0])
            return
        error = error.__cause__ or error.__context__


def end_dead_server(why: str) -> None:
    """Say why in the log, and end this process and Triton; in any other process than Triton's stub, only say why."""
    pb_utils.Logger.log_error(f"the engine is dead ({why}): this server ends; labctl restart begins it anew")
    if "c_python_backend_utils" in sys.builtin_module_names:
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(1)
