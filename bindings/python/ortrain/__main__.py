"""The ``ortrain`` command."""

from __future__ import annotations

import sys

from ortrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
