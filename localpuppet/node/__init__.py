"""One machine: from a release to a supervised run.

A function that reads or writes the state directory raises `StateError` if the disk refuses.

packages: `cli`, `enc`, `puppet`, `releases`, `runs`, `settings`, `wiring`.
"""
