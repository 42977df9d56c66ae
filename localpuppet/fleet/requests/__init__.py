"""Signed requests of a person or node to another node, and the signed replies.

decides: `confirmation`, `request`.
acts: `arguments`, `client`, `handler`, `messages`, `repeating`.
"""
