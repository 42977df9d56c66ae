"""Reactions: a run because an answer that the last good run was given is another one now.

decides: `attribution`, `deciding`, `dependency`, `limits`, `pace`, `state`.
acts: `collectors`, `ended_runs`, `memory`, `questions`, `reactor`.
"""
