"""`seed bench codecs`: size and cost of each codec on real observations, and the links over which it pays off."""

from __future__ import annotations

from typing import Any

from seedcli.bench.output import machine, print_progress, show, table
from seedcli.config.schema import make_environment_config
from seedcli.envs.placement import create_env_in_actor
from seedcli.errors import EnvironmentFailed
from seedcli.net.codecs import RAW, fitting_codecs
from seedcli.roles.actor.codec_choice import COST_SHARE, WORTH_BYTES, Cost, Sample, best, measure_codec, play

_ENVS = 32  # of a message
_STACKED = {"football": 4}  # frames of an observation as the published agent sees it
# Name, configuration, environments, steps skipped at the start because episodes begin alike in all environments.
_PLAYED = (
    ("CartPole", {"family": "gymnasium", "id": "CartPole-v1"}, _ENVS, 20),
    ("Pong", {"family": "atari", "id": "pong"}, _ENVS, 100),
    ("Breakout", {"family": "atari", "id": "breakout"}, _ENVS, 100),
    ("football", {"family": "football", "id": "11_vs_11_easy_stochastic"}, 8, 20),
)
_STEPS = 64


def pays_below(cost: Cost, raw_bytes: float) -> float:
    """The link, bits a second, over which the encoded message takes as long as the plain one.

    For a message of E environments that a codec reduces from r to b bytes: r/link = b/link + encode + decode. 0 if
    the codec saves nothing.
    """
    saved = 8 * (raw_bytes - cost.nbytes)
    return max(0.0, saved) / (cost.encode_seconds + cost.decode_seconds)


def _figures(sample: Sample) -> dict[str, Any]:
    """Figures of every codec that fits the only array of a sample."""
    ((name, array),) = sample.layout.spec.arrays.items()
    envs = sample.layout.num_envs
    parts = sample.parts(0, array)
    raw_bytes = array.nbytes * envs
    costs = [measure_codec(codec, array, envs, parts, decode=True) for codec in fitting_codecs(array)]
    chosen = RAW
    if raw_bytes >= WORTH_BYTES:
        chosen = best(costs, raw_bytes, COST_SHARE * sample.step_seconds).codec
    return {
        "array": name,
        "envs": envs,
        "raw_bytes": array.nbytes,
        "step_us": 1e6 * sample.step_seconds / envs,
        "auto": chosen,
        "codecs": {
            cost.codec: {
                "bytes": cost.nbytes / envs,
                "ratio": cost.nbytes / raw_bytes,
                "encode_us": 1e6 * cost.encode_seconds / envs,
                "decode_us": 1e6 * cost.decode_seconds / envs,
                "share_of_step": cost.encode_seconds / sample.step_seconds,
                "pays_below_mbit": None if cost.codec == RAW else pays_below(cost, raw_bytes) / 1e6,
            }
            for cost in costs
        },
    }


def measure_codecs() -> dict[str, Any]:
    """Play every environment and try every codec on its observations.

    Returns:
        By environment: bytes of an observation, microseconds of a step of one environment, the codec that
        `net.compression = "auto"` would choose for a learner elsewhere, and of each codec bytes, costs and the link
        below which it pays, all for one environment; or {"missing": sentence} if it cannot be played here.
    """
    found: dict[str, Any] = {}
    for name, config, envs, skip in _PLAYED:
        print_progress(f"{name}, {envs} environments a message")
        try:
            env = create_env_in_actor(make_environment_config(config), envs)
        except EnvironmentFailed as error:
            found[name] = {"missing": str(error)}
            continue
        try:
            found[name] = _figures(play(env, 1, least=_STEPS, most=_STEPS, skip=skip))
        finally:
            env.close()
    return found


def run_bench_codecs(*, json_output: bool) -> int:
    """`seed bench codecs`: bytes and costs of every codec on real observations.

    Args:
        json_output: print JSON instead of a table.
    """
    found = measure_codecs()
    result = {"bench": "codecs", "machine": machine(), "environments": found}
    shown = table(
        "observations on the wire, of one environment and step, under random actions",
        "", "codec", "bytes", "of raw", "encode µs", "decode µs", "of a step", "pays below", "auto",
    )  # fmt: skip
    shown.columns[0].justify = shown.columns[1].justify = "left"
    notes = []
    for name, figures in found.items():
        if "missing" in figures:
            notes.append(f"{name}: {figures['missing']}")
            continue
        for index, (codec, cost) in enumerate(figures["codecs"].items()):
            link = cost["pays_below_mbit"]
            shown.add_row(
                name if index == 0 else "", codec, f"{cost['bytes']:,.0f}", f"1/{1 / cost['ratio']:.1f}",
                f"{cost['encode_us']:.2f}", f"{cost['decode_us']:.2f}", f"{100 * cost['share_of_step']:.1f} %",
                "" if link is None else f"{link:,.0f} Mbit/s" if link else "never",
                "✓" if codec == figures["auto"] else "",
                end_section=index + 1 == len(figures["codecs"]),
            )  # fmt: skip
        notes.append(
            f"{name}: {figures['envs']} environments a message; a step takes {figures['step_us']:,.1f} µs of each"
        )
        if name in _STACKED:
            small = figures["codecs"][figures["auto"]]["bytes"]
            stacked = _STACKED[name] * figures["raw_bytes"]
            notes.append(
                f"{name}: the learner stacks {_STACKED[name]} frames, {stacked:,} bytes: "
                f"1/{stacked / small:,.0f} of that is sent"
            )
    return show(result, json_output, [shown], notes)
