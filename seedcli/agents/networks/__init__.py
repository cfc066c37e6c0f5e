"""Networks as Keras layers: torsos, observation encoders, frame stacks, normalisation and complete models. It may
import `agents.base` and what `agents` may import. Losses and targets are outside of it.
"""
