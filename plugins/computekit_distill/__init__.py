"""The distill plugin."""
