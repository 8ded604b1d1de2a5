"""The versions of all formats that opforge writes to a disk or sends: one for each format that can change alone.

A reader refuses or skips a file of another version, and reports that. Formats that travel or are shared keep their
readers: a change gets a new number, and the old one is still read. What a machine remembers is written again instead.
docs/reference/formats.md states the formats; tests/contract/test_shipped_formats.py keeps what was shipped readable.
"""

from __future__ import annotations

# What travels between machines.
STATEMENT = 1
"""A publisher's statement about trees: `remote/statements.py`."""
TOPIC = 1
"""The file of a topic, in both of its forms: `remote/topics.py`."""
WITHDRAWALS = 2
"""A key's list of its releases, and of what it has withdrawn: `remote/withdrawal_lists.py`."""
RECORD = 1
"""The record of an entry: `cache/records/entry.py`."""
VARIANT = 1
"""The table `x-opforge` in a variant's metadata: `packages/form/metadata.py`."""
TUNED = 1
"""A tuning result: `builders/lookup/tuning_results.py`."""
LOCK = 2
"""`opforge.lock`: `packages/project/lock_file.py`."""
MACHINE = 1
"""The report of a machine, by which another one chooses variants: `packages/choose/environment.py`."""
UNIT = 1
"""The unit that a worker of a farm builds: `unit.py` in its folder."""

GRAPHS = 1
"""The entries of compiled graphs in pages: `graphs/content.py`."""
JIT_PAGE = 1
"""A page of what a JIT has compiled: `jits/page.py`."""
BENCH = 4
"""The results of `opforge bench --json`: `bench/results.py`."""

# What users and sites keep.
STORE = "v2"
"""The folder of a store's format: `cache/layout.py`."""
TRUST = 1
"""The trust file: `remote/signatures/trust_file.py`."""
SEEN = 1
"""The newest seen list of each signer: `remote/signatures/seen.py`."""
FETCHED = 1
"""The record of the statement of a fetched entry: `cache/records/fetched_offer.py`."""
INSTALLED = 2
"""An installed release: `packages/installed/releases.py`."""

# Parts of keys: another number, and everything is built again.
PLAN = 2
"""The key of a plan: `builders/declaration/build_plan.py`."""
DESCRIPTION = 3
"""The key of a description: `builders/declaration/description.py`."""
OBJECT = 1
"""The key of an object file: `builders/run/object_reuse.py`."""

# What a machine remembers for itself; any of it may be lost.
REMEMBERED = 3
"""What a process remembers on disk: `remembered_values.py`."""
LOOKUP = 5
"""Remembered look-ups: `builders/lookup/remembered_lookups.py`."""
KERNEL_LOOKUP = 4
"""Remembered calls of `get_kernel`: `packages/load/get_kernel.py`."""
TOOLCHAIN = 14
"""The reports of compilers: `builders/toolchains/discovery/probe.py`."""
PACKAGE_LISTS = 3
"""The files of the system's package managers: `cache/filesystem/packages.py`."""
ENTRY_POINTS = 4
"""Remembered entry points: `accelerator/entry_points.py`."""
SETTINGS_FILES = 3
"""The content of the settings files: `settings/files.py`."""
COUNTS = 1
"""How often stores were hit: `cache/maintenance/counts.py`."""
