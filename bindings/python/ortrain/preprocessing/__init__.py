"""What is done to data of people before a model takes them, fitted on the rows that a model is trained on.

`tables` encodes the columns of a table as numbers, `pictures` reads images as they are needed, `text` makes tokens, and `nodes`
writes tables and pictures as ONNX nodes in front of a model. Each is stored in checkpoints as JSON.
"""
