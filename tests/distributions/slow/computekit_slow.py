"""A plugin that does too much when it is imported."""

import time

time.sleep(0.2)
