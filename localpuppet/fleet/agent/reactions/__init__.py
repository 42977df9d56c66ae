"""Reactions: a run follows if an answer that the last good run received has changed.

decides: `dependency`.
acts: `decision`, `questions`, `reactor`.
"""
