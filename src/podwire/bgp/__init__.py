"""Announces routes by BGP: FRR's daemons are told what a `Speaker` says, and asked what became of it."""
