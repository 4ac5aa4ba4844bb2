"""Which initializers are parameters, by what an exporter recorded and by how they are used."""
