"""Which initializers are parameters: an exporter's record decides, or their use in the graph."""
