"""Actions before the extension is loaded; importing this package runs them."""

from ortrain._start import interrupt, main_interpreter  # in this order

__all__ = ["interrupt", "main_interpreter"]
