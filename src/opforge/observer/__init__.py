"""An oracle for inputs: notes what the programs of a build really ask the system for.

Tests and `build-ops --observe` import it; no build depends on it.
"""
