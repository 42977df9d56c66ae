"""One node: from a release to a supervised run.

A function that reads or writes the state directory raises `StateError` if the disk refuses or a
file there is damaged, and so does parsing if a field is missing or has the wrong type.

What else may be raised everywhere is named where a docstring says more than this:
`InvalidInputError` for what a person wrote, `IntegrityError` for a wrong tag, digest or signature,
`UnavailableError` for a server or a git without an answer, `BusyError` for a lock of another
process, `PuppetMissingError`, and `StateError` for a program that cannot be started.

A field lock_store keeps gc away from the content store, and instance_facts are those from the
cloud's instance data.

builds the parts: `app`.
ports for layers above: `node_ports`.
acts: `candidates`, `settings`.
packages: `cli`, `enc`, `preview`, `puppet`, `releases`, `runs`,
  `sealed`.
"""
