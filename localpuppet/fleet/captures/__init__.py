"""Captures of nodes for a preview: kept after a good run, sent on request, collected in files.

decides: `rules`.
acts: `answers`, `collecting`, `keeping`.
"""
