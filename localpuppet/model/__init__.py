"""Values and decisions: no IO, no clock, nothing that can fail but by refusing its input."""
