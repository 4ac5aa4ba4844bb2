"""Makes the models in this folder: a network with a 1x1 convolution as its classifier, as MobileNet of Keras has one, exported by
tf2onnx and by ortrain.keras, and one with a single Sigmoid. Needs the environment of `make keras`."""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import ortrain.keras
import tensorflow as tf
import tf2onnx

folder = sys.argv[1]
keras.utils.set_random_seed(1)
layers = keras.layers
convolution = keras.Sequential(
    [
        keras.Input((8, 8, 3)),
        layers.Conv2D(6, 3, strides=2, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(6.0),
        layers.GlobalAveragePooling2D(keepdims=True),
        layers.Dropout(0.3),
        layers.Conv2D(10, 1, bias_initializer="uniform"),
        layers.Reshape((10,)),
        layers.Softmax(),
    ]
)
sigmoid = keras.Sequential(
    [
        keras.Input((5,)),
        layers.Dense(7, activation="relu", bias_initializer="uniform"),
        layers.Dense(1, activation="sigmoid", bias_initializer="uniform"),
    ]
)
for name, network in (("convolution", convolution), ("sigmoid", sigmoid)):
    ortrain.keras.export(network, f"{folder}/{name}_keras.onnx")
    tf2onnx.convert.from_function(
        tf.function(lambda x, network=network: network(x, training=False)),
        input_signature=[tf.TensorSpec((None, *network.input_shape[1:]), tf.float32, name="input")],
        opset=17,
        output_path=f"{folder}/{name}_tf2onnx.onnx",
    )
