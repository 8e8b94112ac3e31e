"""What every computekit plugin promises; `computekit.testing` says what is checked."""

from computekit.testing import PluginContract


class TestHistogram(PluginContract):
    plugin = "histogram"
