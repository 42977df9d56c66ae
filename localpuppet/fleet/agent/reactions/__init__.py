"""Reactions: a run follows if an answer that the last good run received has changed.

decides: `dependency`.
acts: `collectors`, `finished_runs`, `memory`, `questions`, `reactor`.
private: `attribution`, `decision`, `pace`, `state`.
"""
