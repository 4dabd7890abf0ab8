"""Traces: one real packet, its way through this node's packet filters, and whether an answer came."""
