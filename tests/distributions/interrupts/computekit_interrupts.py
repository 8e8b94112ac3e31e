"""A plugin that raises KeyboardInterrupt when it is imported, though nobody pressed Ctrl-C."""

raise KeyboardInterrupt
