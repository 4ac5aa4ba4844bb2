"""Sphinx settings of the site; ``make docs`` builds it."""

from importlib.metadata import version as installed_version

project = "ortrain"
author = "The ortrain authors"
copyright = author
version = release = installed_version("ortrain")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"ortrain {release}"
html_copy_source = False
