"""Reactions: a run follows if an answer that the last good run received has changed.

decides: `attribution`, `decision`, `dependency`, `limits`, `pace`, `state`.
acts: `collectors`, `finished_runs`, `memory`, `questions`, `reactor`.
"""
