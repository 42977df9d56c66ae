"""Single modules of a manifest: resolved, fetched, and compared with newer versions.

decides: `moves`.
acts: `outdated`.
"""
