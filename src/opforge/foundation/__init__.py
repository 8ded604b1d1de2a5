"""The foundation of all other parts: settings, files, remembered values, events, versions. It imports no other part."""
