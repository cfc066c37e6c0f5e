"""`seed export`: the acting function of a trained agent as a file for TensorFlow, ONNX Runtime or LiteRT, checked
against the original. It may import `roles`, `models`, `agents` and `envs`, and the packages that write a format only
when one is written. How a model is run afterwards is outside of it.
"""
