"""What a person or node asks of another node, signed, and the signed reply.

decides: `compile`, `confirmation`, `deploy`, `lifetime`, `reply`, `request`, `rollout`,
    `status`.
acts: `admission`, `client`, `comparing`, `deploying`, `exchange`, `handler`, `messages`,
    `repeating`.
"""
