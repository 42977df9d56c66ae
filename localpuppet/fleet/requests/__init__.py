"""Signed requests of a person or node to another node, and the signed replies.

decides: `request`.
acts: `request_handler`, `arguments`, `client`.
"""
