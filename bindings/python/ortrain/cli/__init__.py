"""The ``ortrain`` command: one module per subcommand, which is imported when it runs."""

from ortrain.cli.app import main

__all__ = ["main"]
