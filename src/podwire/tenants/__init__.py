"""Networks of tenants: what a provider of them is, and how one is found by name.

A package that ships a provider needs nothing but this room and `podwire.model.tenants`: it has an entry point of the
group `podwire.network_providers`, which is a `Factory`, and holds its provider against `podwire.tenants.testing`.
"""
