"""Rewrites code that is tied to one vendor's device into code that runs on all: `opforge port`.

`vendors.py` and `names.py` are the rules, as data. `analysis.py` finds the ties of one module and decides about each,
`rewriting.py` carries the decisions out, `files.py` reads and writes. All of it but the tables needs libcst.
"""
