#!/usr/bin/env python
"""Django's command line; `platform/` is a second source root (docs/decisions/0001)."""

import os
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent / "platform"))

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
