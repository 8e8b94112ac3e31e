"""A plugin that calls sys.exit when it is imported."""

import sys

sys.exit(7)
