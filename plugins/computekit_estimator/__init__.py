"""The estimator plugin."""
