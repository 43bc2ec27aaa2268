"""``python -m gwatch.rewrite`` is ``gwatch rewrite``."""

import sys

from gwatch.rewrite.cli import main

if __name__ == "__main__":
    sys.exit(main())
