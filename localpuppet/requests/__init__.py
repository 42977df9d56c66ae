"""What a person or node asks of another node, signed, and the signed reply.

decides: `confirmation`, `deploy`, `lifetime`, `reply`, `request`, `rollout`.
acts: `admission`, `client`, `deploying`, `exchange`, `handler`, `messages`.
"""
