"""What can be wrong with a request to the estimator."""

from __future__ import annotations

from computekit import ComputekitError


class ContradictingDimensions(ComputekitError):
    """Model dimensions that do not fit together, or of which one is missing."""


class ImpossibleLayout(ComputekitError):
    """A parallel layout that cannot run; the message names the nearest one that can."""


class CannotPredict(ComputekitError):
    """Something the estimator has no model of; the message says what is missing."""
