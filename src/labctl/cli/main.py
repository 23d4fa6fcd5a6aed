"""The entry point: finds the command, shows every error in one place, and gives each end its exit status.

0 done, 1 failed (with a remedy), 2 wrong usage, 130 interrupted, 143 terminated. A command's module is imported only
when that command is used: ``labctl --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from pathlib import Path
from types import FrameType

import click

from labctl.cli.console import show_error
from labctl.errors import LabError

NAMES = ("labctl", "triton-labs")  # the second for people who have another tool of the first name

# name: (module, what it does)
COMMANDS = {
    "list": ("catalog", "List the labs, or the settings of one."),
    "doctor": ("doctor", "Say what is missing on this machine, and what to do about it."),
    "render": ("render", "Render a stack's model repository, and do nothing else."),
    "up": ("stacks", "Bring a stack up and wait until every model answers."),
    "status": ("stacks", "Show the state, endpoints and models of what is up."),
    "logs": ("stacks", "Show the server's log of a stack."),
    "run": ("run", "Run a whole lab: up, its clients, the verdict, down."),
    "bench": ("bench", "Measure a stack under load."),
    "compare": ("compare", "Show results side by side, with ratios."),
    "infer": ("infer", "Get one answer from a model of a running stack."),
    "metrics": ("metrics", "Show Triton's counters as a table."),
    "chat": ("chat", "Open a chat page for a stack's text models, on loopback."),
    "watch": ("watch", "Open a page that shows a stack's scheduler while it works."),
    "clock": ("clock", "Stop a stack's schedulers, step them, slow them down, let them run."),
    "weights": ("weights", "Pull, list and prune model weights."),
    "engines": ("engines", "Build, list and prune compiled engines."),
    "images": ("images", "List and prune the compose runtime's images."),
    "bundle": ("bundle", "Pack the labs for a machine without a network."),
    "exercise": ("exercise", "Exercises: you write the lines, your running server judges."),
    "learn": ("exercise", "Show exercises as one screen; check whenever you save a file."),
    "workshop": ("workshop", "Show the progress of a group as one table."),
    "reload": ("edit", "Load the edited models of a running stack again."),
    "undo": ("edit", "Put the shipped files of a stack back; yours are kept beside them."),
    "restart": ("edit", "Take a running stack down and up again, with the same settings."),
    "scale": ("edit", "Have more or fewer replicas of a stack, while it serves."),
    "models": ("edit", "Load or unload a model on every server of a stack."),
    "down": ("stacks", "Take a stack down, and check that nothing of it is left."),
}


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception: only clean-up code may stand in its way."""


class LazyGroup(click.Group):
    """Knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"labctl.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="triton-serving-labs", prog_name="labctl")
def cli() -> None:
    """Hands-on labs for LLM serving with NVIDIA Triton.

    Begin with `labctl list`, then `labctl run iterative`.
    """
    _tidy()


def _tidy() -> None:
    """Whatever the command is, what a killed one left behind goes first."""
    from labctl.orchestrator.tidy import tidy
    from labctl.workspace import Workspace

    with contextlib.suppress(LabError, OSError):  # no checkout, or nothing that is ours to remove
        for what in tidy(Workspace.find()):
            click.echo(f"  --  ended what a killed command had left behind: {what}", err=True)


def _terminated(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the clean-up must end
    raise Terminated


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        called = Path(sys.argv[0]).name
        code = cli.main(argv, prog_name=called if called in NAMES else NAMES[0], standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LabError as error:
        show_error(error)
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except Terminated:
        click.echo("terminated", err=True)
        return 143
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output (head, less) has seen enough
        return 1


def entry() -> None:
    sys.exit(main())
