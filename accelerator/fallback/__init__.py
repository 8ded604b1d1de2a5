"""Stand-ins for devices without an own implementation: device scopes, streams and graphs."""
