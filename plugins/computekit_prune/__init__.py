"""The prune plugin."""
