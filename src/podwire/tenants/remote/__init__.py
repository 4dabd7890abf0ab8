"""Providers that are other programs, and ours for others: the protocol `types` over gRPC, both ways."""
