"""The tests of this folder need JAX: ``make test-jax`` runs them in an environment that has it."""

from optional_packages import OptionalPackages

_packages = OptionalPackages(__file__, "jax", ("flax", "jax", "jax2onnx"), "test-jax")
collect_ignore_glob = _packages.ignored
pytest_terminal_summary = _packages.report
