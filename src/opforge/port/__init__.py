"""Rewrites code that uses one vendor's device into code that runs on every accelerator: `opforge port`.

`vendors.py` and `names.py` hold the rules' tables. `analysis.py` finds the vendor references of a module and decides
about each, `rewriting.py` applies the decisions, and `files.py` reads and writes files. All but the tables need libcst.
"""
