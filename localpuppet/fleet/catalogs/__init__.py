"""Whole catalogs of nodes: kept after a good run, published in chunks, sent on request.

acts: `keeping`.
"""
