"""Changes of a model's graph before its gradient is built: the weights of the network, and a free batch size."""
