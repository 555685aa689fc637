"""``python -m embodied_env.cli`` is ``embodied-env``."""

import sys

from embodied_env.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
