"""`python -m embedded`: see cli.py."""

import sys

from embedded.cli import main

if __name__ == "__main__":
    sys.exit(main())
