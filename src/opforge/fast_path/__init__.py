"""The fast path of a load: from a call to a loaded library, or to "no". Only then the rest of opforge is imported.

It alone is under the budget of a hit, `import opforge` included. It imports nothing but small values: settings,
formats, errors, and who is trusted. It begins at `lookup.load`: `lookup.remembered_entry` says whether what was
remembered is still valid (`foundation/remembered_values.is_still_valid`), and `library.load` checks and opens the
library.
"""
