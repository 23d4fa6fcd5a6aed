"""Several servers may serve one stack out of one repository: what each writes goes into a folder of its own."""

import os


def own_folder(run_dir: str) -> str:
    """This server's part of the stack's run folder; all of it, where the stack has one server."""
    number = os.environ.get("LABS_REPLICA", "")
    return os.path.join(run_dir, f"replica-{number}") if run_dir and number else run_dir  # noqa: PTH118
