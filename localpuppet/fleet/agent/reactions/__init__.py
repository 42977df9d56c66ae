"""Reactions: a run follows if an answer that the last good run received has changed.

decides: `attribution`, `deciding`, `dependency`, `limits`, `pace`, `state`.
acts: `collectors`, `ended_runs`, `memory`, `questions`, `reactor`.
"""
