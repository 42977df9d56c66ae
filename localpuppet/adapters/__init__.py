"""The world: each module implements ports with one library or the kernel."""
