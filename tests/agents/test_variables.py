"""Names of variables: derived from the structure, unique, and independent of layers built before."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from seedcli.agents.registry import create_agent
from seedcli.agents.variables import named_variables
from seedcli.training.trainer import Trainer
from tests.agents.helpers import MIXED, agent_config, training_config

# Name → settings, and what the optimizer stores for each variable.
OPTIMIZERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "adam": ({"optimizer": "adam"}, {"momentums", "velocities"}),
    "rmsprop": ({"optimizer": "rmsprop", "rmsprop_momentum": 0.0}, {"velocities"}),
    "momentum": ({"optimizer": "rmsprop", "rmsprop_momentum": 0.9}, {"momentums", "velocities"}),
}


class Odd(keras.layers.Layer):
    """What users may write: layers in private attributes and dicts, shared ones, lists of variables, a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden = keras.layers.Dense(2)
        self.by_name = {"left": keras.layers.Dense(2), "right": self._hidden}
        self.tables = [self.add_weight(shape=(2,)), self.add_weight(shape=(2,))]
        self.dropout = keras.layers.Dropout(0.5, seed=1)
        self.block = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization()])
        self.block(self.by_name["left"](self._hidden(tf.zeros([1, 2]))))
        self.add_weight(shape=(2,))  # in no attribute


def test_names_are_places_in_the_structure() -> None:
    keras.layers.Dense(3)(tf.zeros([1, 1]))  # advances the layer counter of Keras
    names = set(named_variables(net=Odd()))
    assert names == set(named_variables(net=Odd()))
    assert {"net/by_name/left/kernel", "net/by_name/right/bias", "net/tables/0", "net/tables/1"} <= names
    assert not any("hidden" in name for name in names), "a shared layer has the name of its public place"
    assert sum(name.startswith("net/block/") and name.endswith("moving_mean") for name in names) == 1
    assert sum(name.startswith("net/dropout/") for name in names) == 1
    assert len(names) == len(Odd().variables)


def test_two_variables_of_one_name_are_refused() -> None:
    layer = keras.layers.Layer()
    layer.table = layer.add_weight(shape=(2,))
    layer._table = layer.add_weight(shape=(2,))
    with pytest.raises(ValueError, match="two variables are named net/table: rename"):
        named_variables(net=layer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_every_variable_of_agent_and_optimizer_has_one_name(algorithm: str, optimizer: str) -> None:
    spec = MIXED
    values: dict[str, Any] = {"separate_value": True, "normalize_values": True}
    if algorithm == "r2d2":
        values = {"dueling_hidden": 4}
        spec = type(MIXED)("test/chosen", MIXED.observation, type(MIXED.action)((3,)))
    config = agent_config(algorithm=algorithm, lstm=4, normalize_observations=True, **values)

    def make() -> tuple[Any, Trainer]:
        training = training_config(**OPTIMIZERS[optimizer][0])
        agent = create_agent(config, training, spec, 0)
        return agent, Trainer(agent, training, 10)

    (agent, trainer), (other, other_trainer) = make(), make()
    named, moments = agent.variables(), trainer.variables()
    assert list(named) == list(other.variables()) and list(moments) == list(other_trainer.variables())
    assert len({id(variable) for variable in named.values()}) == len(named)
    networks = [agent.network, *([agent.target_network] if algorithm == "r2d2" else [])]
    assert {id(v) for v in named.values()} == {id(v.value) for network in networks for v in network.variables}
    assert {id(v) for v in moments.values()} == {id(v.value) for v in trainer.groups[0].optimizer.variables}
    trained = {name for name, v in named.items() if id(v) in {id(t.value) for t in agent.network.trainable_variables}}
    kinds = OPTIMIZERS[optimizer][1]
    of_variables = {f"network/{kind}/{name}": name for kind in kinds for name in trained}
    assert moments.keys() == {"network/iterations", "network/learning_rate", *of_variables}
    assert all(moments[moment].shape == named[name].shape for moment, name in of_variables.items())
