"""Edges: which node makes which other run, and because of what: kicks, queries, collectors.

decides: `cycles`, `links`, `reactions`.
acts: `kicks`, `reactor`.
"""
