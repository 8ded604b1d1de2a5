"""An oracle for inputs: notes what the programs of a build really ask the system for.

Only tests import it.
"""
