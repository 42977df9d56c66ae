"""Builds the dashboard and the PuppetDB API from the settings.

acts: `dashboard`, `serving`.
private: `access`, `actions`, `puppetdb`.
"""
