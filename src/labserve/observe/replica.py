"""Several servers may serve one stack out of one repository: what each writes goes into a folder of its own."""

import os


def own_folder(run_dir: str) -> str:
    """This server's part of the stack's run folder; all of it, where the stack has one server."""
    number = os.environ.get("LABS_REPLICA", "")
    if not run_dir or not number:
        return run_dir
    return f"{run_dir}/replica-{number}"
