"""Who tells the network around the cluster the way to which address, to whom, and why not. Pure but for `follower`."""
