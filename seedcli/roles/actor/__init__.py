"""The actor: successive sessions with the learner. It never imports TensorFlow, nor `agents`, `inference` or
`training`: an actor for CartPole stays under 150 MB. It knows neither the algorithm nor the network.
"""
