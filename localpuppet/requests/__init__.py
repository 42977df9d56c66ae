"""What a person or node asks of another node, signed, and the signed reply.

decides: `lifetime`, `reply`, `request`.
acts: `admission`, `client`, `exchange`, `handler`, `messages`.
"""
