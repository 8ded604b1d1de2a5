"""Emulations on the host, for devices without device scopes, streams or graphs."""
