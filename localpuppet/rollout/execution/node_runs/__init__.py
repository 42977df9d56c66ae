"""Node runs of a rollout: their prerequisites and their results.

acts: `starting`, `takeover`.
private: `knowing`.
"""
