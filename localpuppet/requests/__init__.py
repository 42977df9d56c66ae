"""What a person or node asks of another node, signed, and the signed reply.

decides: `lifetime`, `reply`, `request`, `rollout`.
acts: `admission`, `client`, `exchange`, `handler`, `messages`.
"""
