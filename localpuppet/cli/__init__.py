"""The command line: one file per noun, rendering, and the wiring of adapters."""
