"""The backend test cases that come with the ``onnx`` package, run here and by stock onnxruntime.

``python -m tests.conformance`` runs all of them in both, and writes down what passes and why the others fail:
``record.yaml``, which ``test_conformance.py`` holds the library to, and ``docs/reference/conformance.md``.
"""
