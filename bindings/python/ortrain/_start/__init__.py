"""Actions before the extension is loaded; importing this package runs them."""

from ortrain._start import interrupt, main_interpreter  # interrupt comes first

__all__ = ["interrupt", "main_interpreter"]
