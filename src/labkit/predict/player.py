"""The process of a policy: it answers the referee's questions, and sees copies of what a server knows.

Run as a script, with the policy's file. Each line of its input is a question in JSON, each line of its output an
answer. Once the file is loaded it can open no file and start no process.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

PR_SET_PDEATHSIG = 1
MEMORY = 1 << 30  # bytes
SECONDS = 300  # of processor time: a policy whose referee was killed does not go on for ever
QUESTIONS = ("places", "line", "reserve", "victim")


def main() -> None:
    path = sys.argv[1]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with its referee, however that ends
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a policy's prints must not mix with its answers
    policy: dict[str, object] = {"__name__": "policy", "__file__": path}

    def reply(**fields: object) -> None:
        replies.write(json.dumps(fields) + "\n")
        replies.flush()

    def failed(error: BaseException) -> None:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        reply(error=f"{type(error).__name__}: {error}", line=lines[-1] if lines else getattr(error, "lineno", 0))

    try:
        exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), policy)
    except BaseException as error:
        failed(error)
        return
    for limit, most in (("NOFILE", 0), ("NPROC", 0), ("FSIZE", 0), ("AS", MEMORY), ("CPU", SECONDS)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (most, most))
    reply(answers=[name for name in QUESTIONS if callable(policy.get(name))])
    for line in sys.stdin:
        question = json.loads(line, object_hook=lambda fields: SimpleNamespace(**fields))
        question.view.served = vars(question.view.served)
        began = time.thread_time()
        try:
            answer = policy[question.ask](question.view)  # type: ignore[operator]
            reply(answer=answer, seconds=time.thread_time() - began)
        except BaseException as error:
            failed(error)
            return


if __name__ == "__main__":
    main()
