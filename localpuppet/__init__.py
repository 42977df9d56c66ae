"""Masterless OpenVox and Puppet with immutable releases, an ENC and records that tell the truth."""

__version__ = "0.1.0"
