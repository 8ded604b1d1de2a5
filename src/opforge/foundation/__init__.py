"""The foundation of all other parts: settings, files, the memory, events, versions. It imports no other part."""
