"""Signed requests of a person or node to another node, and the signed replies.

decides: `request`.
acts: `request_client`, `request_handler`.
"""
