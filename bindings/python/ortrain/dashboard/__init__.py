"""The page that ``ortrain dashboard`` serves: runs and their curves, read from the lines that `JSONLogger` writes."""

from ortrain.dashboard.server import Server

__all__ = ["Server"]
