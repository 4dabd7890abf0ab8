"""Addresses of load balancers: which Service gets which, and why. Pure."""
