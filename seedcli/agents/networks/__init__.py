"""Networks as Keras layers: torsos, encoders of observations, frame stacks, normalisation, and the models made of
them. It may import `agents.base` and what `agents` may. It knows nothing of losses or targets.
"""
