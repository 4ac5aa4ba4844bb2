"""What `generate_artifacts` reports: the choice for each initializer, and what to know about the weights."""
