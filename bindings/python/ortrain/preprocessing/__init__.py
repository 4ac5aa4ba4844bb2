"""How raw data become the inputs of a model, fitted to the rows that the model is trained on.

`tables` encodes the columns of a table as numbers, `pictures` reads images when they are needed, and `text` makes tokens.
Checkpoints store the settings of each as JSON. `nodes` writes the preprocessing of tables and pictures as ONNX nodes in front
of a model.
"""
