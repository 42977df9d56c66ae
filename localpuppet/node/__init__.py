"""One machine: from a release to a supervised run.

packages: `cli`, `enc`, `puppet`, `releases`, `runs`, `settings`, `wiring`.
"""
