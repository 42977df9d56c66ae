"""The dashboard: a fleet in a browser.

packages: `cli`, `dashboard`, `doors`, `wiring`.
modules: `settings`.
"""
