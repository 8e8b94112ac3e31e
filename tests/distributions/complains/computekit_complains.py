"""A plugin that writes to standard error when it is imported."""

import sys

sys.stderr.write("a complaint\n")
