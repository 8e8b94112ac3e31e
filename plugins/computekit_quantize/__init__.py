"""The quantize plugin."""
