"""Captures of nodes for a preview: kept after a good run, sent on request, collected in files.

acts: `answers`, `collecting`, `keeping`.
"""
