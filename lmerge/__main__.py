"""``python -m lmerge`` is ``lmerge``."""

from __future__ import annotations

import sys

from lmerge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
