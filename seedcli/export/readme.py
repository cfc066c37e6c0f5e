"""The README beside a model: what it is, its inputs and outputs, how it is called."""

from __future__ import annotations

from collections.abc import Iterable

from seedcli.export.check import LIMIT, Checked
from seedcli.models.description import Description, Input, Tensor
from seedcli.telemetry.numbers import counted

_ONNX = """\
import numpy as np
import onnxruntime

model = onnxruntime.InferenceSession("{name}", providers=["CPUExecutionProvider"])
names = [output.name for output in model.get_outputs()]


def call(inputs):
    return dict(zip(names, model.run(None, inputs)))
"""
_TFLITE = """\
import numpy as np
from ai_edge_litert.interpreter import Interpreter

model = Interpreter("{name}").get_signature_runner()


def call(inputs):
    return model(**inputs)
"""
_SAVED_MODEL = """\
import numpy as np
import tensorflow as tf

model = tf.saved_model.load("{name}").signatures["serving_default"]


def call(inputs):
    return {{key: value.numpy() for key, value in model(**{{k: tf.constant(v) for k, v in inputs.items()}}).items()}}
"""
_LOADING = {"onnx": _ONNX, "tflite": _TFLITE, "savedmodel": _SAVED_MODEL}


def readme(name: str, format_name: str, description: Description, checked: Checked) -> str:
    """The text of the README.

    Args:
        name: of the model's file or folder.
        format_name: name of its format.
        description: what it says of itself.
        checked: its comparison with the original.
    """
    spec, config = description.env_spec, description.config
    how = "greedy" if description.greedy else "sampled"
    batch = "any number of environments" if description.batch is None else counted(description.batch, "environment")
    return f"""\
# {name}

A policy for {spec.name}: {config["agent"]["algorithm"]}, {how} actions, trained for {description.env_steps:,}
environment steps and exported by seedcli {description.seedcli}. Over {checked.observations:,} observations of the
environment its outputs differ from the original's by at most {checked.difference:.1e} (in {checked.output};
relative to the output's largest number if that is above 1). The limit is {LIMIT:.0e}.

It answers {batch} at once: N is the first axis of every array.

| input | type | shape | meaning |
|---|---|---|---|
{_table(description.inputs)}

| output | type | shape | meaning |
|---|---|---|---|
{_table(description.outputs)}

{_range(description)}{_memory(description)}

```python
{_LOADING[format_name].format(name=name)}

{_loop(description)}```

With seedcli, `seed eval --model {name}` plays it and `seedcli.load_policy("{name}")` gives it as an object.
"""


def _table(tensors: Iterable[Tensor]) -> str:
    return "\n".join(
        f"| `{each.name}` | {each.dtype} | [{', '.join(['N', *map(str, each.shape)])}] | {each.meaning} |"
        for each in tensors
    )


def _range(description: Description) -> str:
    units, action = description.spaces.units, description.env_spec.action
    if action.size:
        parts = [f"{low:g} to {high:g}" for low, high in zip(units.low, units.high, strict=True)]
    else:
        parts = [f"{low:.0f} to {high:.0f}" for low, high in zip(units.low, units.high, strict=True)]
    which = parts[0] if len(set(parts)) == 1 else ", ".join(parts)
    return (
        f"Actions are those of the environment: {which}{', each' if len(parts) > 1 and len(set(parts)) == 1 else ''}."
    )


def _memory(description: Description) -> str:
    if not any(each.kind == "state" for each in description.inputs):
        return " It has no memory."
    return (
        " It has a memory: give each `next_state_…`\nback as `state_…` with the next observation, and set `first` "
        "where an episode begins, which forgets it."
    )


def _loop(description: Description) -> str:
    rows = description.batch or 1
    state = [each for each in description.inputs if each.kind == "state"]
    names = {each.of: each.name for each in description.outputs if each.kind == "state"}

    def line(each: Input) -> str:
        shape = f"({', '.join([str(rows), *map(str, each.shape)])}{',' if not each.shape else ''})"
        if each.kind == "first":
            return f'"first": np.array([{", ".join(["True"] * rows)}]),  # False within an episode'
        if each.kind == "noise":
            return f'"noise": np.random.default_rng().random({shape}, np.float32),'
        return f'"{each.name}": np.zeros({shape}, np.{"bool" if each.dtype == "bool" else each.dtype}),'

    body = "\n".join(f"    {line(each)}" for each in description.inputs)
    text = f'inputs = {{\n{body}\n}}\noutputs = call(inputs)\nprint(outputs["action"])\n'
    for each in state:
        text += f'inputs["{each.name}"] = outputs["{names[each.of]}"]\n'
    return text
