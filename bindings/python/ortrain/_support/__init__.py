"""What all of the package shares: values of a step, signatures, checks of arguments, texts."""
