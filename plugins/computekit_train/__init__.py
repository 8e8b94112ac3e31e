"""The train plugin."""
