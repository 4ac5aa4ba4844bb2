"""How raw data become the inputs of a model, fitted to the rows that the model is trained on.

`tables` encodes the columns of a table as numbers, `pictures` reads images as they are needed, `text` makes tokens, and `nodes`
writes tables and pictures as ONNX nodes in front of a model. Each is stored in checkpoints as JSON.
"""
