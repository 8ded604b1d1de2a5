"""Every setting, as `settings.NAME()`: the value in force. They are declared in `table.py`."""

from .table import *  # noqa: F403 - a list of their names here would say each setting a second time
