"""Statistics: what the kernel counts of Services and pods, added up and told."""
