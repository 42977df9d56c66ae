"""One node: from a release to a supervised run.

A function that reads or writes the state directory raises `StateError` if the disk refuses or a
file there is damaged, and so does parsing if a field is missing or has the wrong type.

builds the parts: `app`.
acts: `candidates`, `settings`.
packages: `cli`, `enc`, `preview`, `puppet`, `releases`, `runs`,
  `sealed`.
"""
