"""Puppetfiles of r10k and g10k: read as data, and converted to manifests.

decides: `parsing`.
acts: `importing`.
"""
