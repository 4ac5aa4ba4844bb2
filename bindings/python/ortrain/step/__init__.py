"""Training with stock onnxruntime: the loop over a step model of :func:`ortrain.artifacts.generate_step`.

Needs ``onnxruntime``, in any of its packages, and ``flatbuffers`` to read and write checkpoints
(``pip install 'ortrain[convert]'``).
"""

from ortrain.step._session import Session

__all__ = ["Session"]
