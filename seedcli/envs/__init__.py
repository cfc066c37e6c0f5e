"""What is played: one file or folder a family, each gives a vector environment. It never imports TensorFlow, nor
`net`, and a simulator only when it is first needed. It knows nothing of agents or of how actions are chosen.
"""
