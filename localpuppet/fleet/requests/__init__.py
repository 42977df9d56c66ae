"""Signed requests of a person or node to another node, and the signed replies.

decides: `catalog`, `compile`, `confirmation`, `deploy`, `lifetime`, `request`, `rollout`, `status`.
acts: `admission`, `client`, `comparing`, `deploying`, `exchange`, `handler`, `messages`.
private: `repeating`, `reply`.
"""
