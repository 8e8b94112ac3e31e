"""The benchmark plugin."""
