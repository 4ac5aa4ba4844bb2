"""The ``ortrain`` command: one module for each subcommand. The module is imported when the subcommand runs."""

from ortrain.cli.app import main

__all__ = ["main"]
