"""Fixtures that every test may use."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models of the tests are too small for threads to be of use
