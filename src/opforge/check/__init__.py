"""`opforge check`: whether each op that is usable here is right, each in a process of its own."""
