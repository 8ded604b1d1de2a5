"""`opforge tune`: which values of an op's tunables are faster than its defaults on this machine."""
