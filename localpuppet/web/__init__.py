"""The dashboard, which shows a fleet in a browser.

A function that reads or writes the state directory raises `StateError` if the disk refuses; one
that uses the bus raises `UnavailableError` if the bus does not answer in time or denies access. One
that takes what settings or requests say raises `InvalidInputError` with the place and the cure.

packages: `access`, `cli`, `dashboard`, `hooks`, `notify`, `puppetdb`.
modules: `app`.
acts: `web_settings`.
"""
