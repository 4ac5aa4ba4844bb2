"""The backend test cases that come with the ``onnx`` package, run here and by stock onnxruntime.

``python -m tests.conformance`` runs all of them in both, and records what passes and why the others fail: in
``record.yaml``, which ``test_conformance.py`` checks the library against, and which is a page of the site.
"""
