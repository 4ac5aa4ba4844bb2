"""The older Python API of onnxruntime: a session in which a run trains, with its settings, over one process or several."""
