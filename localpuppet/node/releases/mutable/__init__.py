"""Mutable code: work trees and branches, with the modules of their locks.

acts: `branches`, `modules`.
"""
