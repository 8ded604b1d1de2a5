"""Is the op built already, and does that entry fit this machine?"""
