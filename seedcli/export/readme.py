"""The README beside a model: its description, its inputs and outputs, and how to call it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import numpy as np

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
_CASTS = """\
`prepare` casts every array to the type of its input, which a runtime does not do by itself: environments often give
float64 where the model takes float32, and int64 where it takes int32 categories that count from 0."""
_LOADING = {"onnx": _ONNX, "tflite": _TFLITE, "savedmodel": _SAVED_MODEL}


def readme(name: str, format_name: str, description: Description, checked: Checked) -> str:
    """The text of the README.

    Args:
        name: of the model's file or folder.
        format_name: name of its format.
        description: the model's description.
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

It computes actions for {batch} at once: N is the first axis of every array.

| input | type | shape | meaning |
|---|---|---|---|
{_table(description.inputs)}

| output | type | shape | meaning |
|---|---|---|---|
{_table(description.outputs)}

{_range(description)}{_memory(description)}

```python
{_LOADING[format_name].format(name=name)}
{_prepare(description)}

{_loop(description)}```

{_CASTS}

With seedcli, `seed eval --model {name}` plays it and `seedcli.load_policy("{name}")` loads it as an object.
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
        return " It is stateless."
    return (
        " It has a state: pass each `next_state_…`\nback as `state_…` with the next observation, and set `first` "
        "where an episode begins, which resets the state."
    )


def _prepare(description: Description) -> str:
    """The function `prepare` of the example, and an observation to call it with."""
    forms, several = description.spaces.forms["observations"], (description.batch or 1) > 1
    rows = (description.batch,) if several else ()
    given = [each for each in description.inputs if each.kind == "observation"]
    lines, parts = [], {}
    for each in given:
        form = forms["" if "" in forms else each.of]
        path = () if "" in forms else tuple(each.of.split("/"))
        start = np.reshape(form["start"], each.shape).tolist() if any(form["start"]) else None
        value = "observation" + "".join(f'["{key}"]' for key in path)
        if start is not None:
            value = f"np.subtract({value}, {start})"
        cast = f"np.asarray({value}, np.{_numpy(each.dtype)})"
        lines.append(f'        "{each.name}": {cast if several else f"{cast}[None]"},')
        shape = (*rows, *each.shape)
        filled = f"zeros({_shape(shape)}, " if start is None else f"full({_shape(shape)}, {start}, "
        parts[path] = f"np.{filled}np.{_numpy(form['dtype'])})"
    whose = f"{description.batch} environments" if several else "one environment"
    body = "\n".join(lines)
    return f'''
def prepare(observation):
    """The inputs for an observation of {whose}, as reset and step return it."""
    return {{
{body}
    }}


# An observation of this form: yours comes from the environment.
observation = {_nested(parts)}'''


def _nested(parts: dict[tuple[str, ...], str]) -> str:
    """Source of the parts, each in the dicts that its path names."""
    if () in parts:
        return parts[()]
    inner: dict[str, dict[tuple[str, ...], str]] = {}
    for path, source in parts.items():
        inner.setdefault(path[0], {})[path[1:]] = source
    body = "\n".join(f'"{key}": {_nested(found)},' for key, found in inner.items())
    return "{\n" + textwrap.indent(body, "    ") + "\n}"


def _numpy(dtype: str) -> str:
    """The name of an element type in NumPy's namespace: np.bool exists only from NumPy 2 on."""
    return "bool_" if dtype == "bool" else dtype


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _loop(description: Description) -> str:
    rows = description.batch or 1
    state = [each for each in description.inputs if each.kind == "state"]
    names = {each.of: each.name for each in description.outputs if each.kind == "state"}

    def line(each: Input) -> str:
        shape = _shape((rows, *each.shape))
        if each.kind == "first":
            return f'"first": np.array([{", ".join(["True"] * rows)}]),  # False within an episode'
        if each.kind == "noise":
            return f'"noise": np.random.default_rng().random({shape}, np.float32),'
        return f'"{each.name}": np.zeros({shape}, np.{_numpy(each.dtype)}),'

    others = [f"    {line(each)}\n" for each in description.inputs if each.kind != "observation"]
    text = "inputs = prepare(observation)" + (f" | {{\n{''.join(others)}}}" if others else "")
    text += '\noutputs = call(inputs)\nprint(outputs["action"])\n'
    for each in state:
        text += f'inputs["{each.name}"] = outputs["{names[each.of]}"]\n'
    return text + ("inputs |= prepare(observation)  # of the next step\n" if state else "")
