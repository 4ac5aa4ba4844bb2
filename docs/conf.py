"""Sphinx settings of the site; ``make docs`` builds it."""

import sys
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from codegen.__main__ import main as codegen  # noqa: E402
from docs import operator_pages  # noqa: E402

# The API of each language, from spec/, and the pages about single operators. They are not committed.
if codegen(["--pages", str(HERE / "reference/api")]) != 0:
    raise SystemExit("the reference pages cannot be rendered from spec/")
operator_pages.write(HERE / "reference")

project = "ortrain"
author = "The ortrain authors"
copyright = author
version = release = installed_version("ortrain")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
autodoc_mock_imports = [] if find_spec("flwr") else ["flwr"]  # its pages are rendered without it
autodoc_typehints = "none"  # the docstrings state types
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # the types in docstrings are not links

html_theme = "furo"
html_title = f"ortrain {release}"
html_copy_source = False
