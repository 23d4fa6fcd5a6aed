"""``python -m labctl``: the same as the ``labctl`` command."""

from labctl.cli.main import entry

entry()
