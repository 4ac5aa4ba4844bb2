"""Shared code of the package: values of a step, signatures, checks of arguments, texts."""
