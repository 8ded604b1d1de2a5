"""What every other part may use: settings, files, the memory, events, versions. It imports no part above it."""
