"""What every computekit plugin promises; `computekit.testing` says what is checked."""

from computekit.testing import PluginContract


class TestTernary(PluginContract):
    plugin = "ternary"
    needs = ("quantize",)
