"""``python -m gpumem_magic``: the same as ``gpumem-magic``."""

from __future__ import annotations

import sys

from gpumem_magic.cli import main

if __name__ == "__main__":
    sys.exit(main())
