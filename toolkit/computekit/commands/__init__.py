"""The host's own commands."""
