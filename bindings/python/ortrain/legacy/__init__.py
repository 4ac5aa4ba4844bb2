"""The older Python API of onnxruntime: sessions in which a run trains, in one process or several, and their settings."""
