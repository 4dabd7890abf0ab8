"""Layer 2: who of the nodes lives, by their heartbeats, and answers to ARP and neighbour discovery for addresses that
no interface has.

The agent's side is `driver.py`. All that must not wait for the agent is in a process of its own (`process.py`): a
thread of the agent would wait for Python's lock whenever the agent is busy.
"""
