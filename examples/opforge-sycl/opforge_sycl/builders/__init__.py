"""One builder for each op, and what all of them have in common."""

FOR_ALL_BUILDERS = {"include_dirs": ["csrc/includes"]}
