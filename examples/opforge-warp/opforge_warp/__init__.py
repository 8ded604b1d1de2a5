"""An adapter that keeps what Warp compiles in opforge's store."""
