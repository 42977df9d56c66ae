"""The Forge: modules by OWNER/NAME and version, as archives.

private: `pins`.
acts: `forge_client`, `forge_modules`.
"""
