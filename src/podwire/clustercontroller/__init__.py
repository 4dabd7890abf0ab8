"""The cluster's controller, a process of its own: addresses for Services of type LoadBalancer."""
