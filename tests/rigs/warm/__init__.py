"""Runs as an agent starts them, warm or cold."""
