"""Signed requests of a person or node to another node, and the signed replies.

decides: `chunk`, `compile`, `confirmation`, `deploy`, `lifetime`, `request`, `rollout`.
acts: `admission`, `chunked`, `client`, `comparing`, `deploying`, `exchange`, `handler`, `messages`.
private: `repeating`, `reply`.
"""
