"""The tests of this folder need Keras with TensorFlow: ``make test-keras`` runs them in an environment that has it."""

from optional_packages import OptionalPackages

_packages = OptionalPackages(__file__, "keras", ("keras", "tensorflow", "tf2onnx"), "test-keras")
collect_ignore_glob = _packages.ignored
pytest_terminal_summary = _packages.report
