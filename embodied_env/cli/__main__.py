"""``python -m embodied_env.cli`` is ``embodied-env``."""

from __future__ import annotations

import sys

from embodied_env.cli import main

if __name__ == "__main__":
    sys.exit(main())
