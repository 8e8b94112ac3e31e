"""The cost plugin."""
