"""Verbs of the orchestrator: many nodes, in the right order.

verbs: `kicks`, `plan`.
shared by verbs: `plan_text`.
"""
