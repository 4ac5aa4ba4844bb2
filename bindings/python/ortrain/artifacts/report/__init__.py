"""The report of `generate_artifacts`: the choice for each initializer, and facts about the weights."""
