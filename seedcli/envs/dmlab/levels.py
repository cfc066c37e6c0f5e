"""DeepMind Lab's levels: their names, and the settings each is loaded with. Nothing here needs the simulator."""

from __future__ import annotations

import re

from seedcli.envs.checks import nearest
from seedcli.envs.dmlab.config import LabConfig
from seedcli.errors import UsageError

# The 30 levels of DMLab-30 to train on, in the order of its README (github.com/google-deepmind/lab,
# game_scripts/levels/contributed/dmlab30).
DMLAB_30: tuple[str, ...] = tuple(
    """
    rooms_collect_good_objects_train rooms_exploit_deferred_effects_train rooms_select_nonmatching_object
    rooms_watermaze rooms_keys_doors_puzzle language_select_described_object language_select_located_object
    language_execute_random_task language_answer_quantitative_question lasertag_one_opponent_small
    lasertag_three_opponents_small lasertag_one_opponent_large lasertag_three_opponents_large natlab_fixed_large_map
    natlab_varying_map_regrowth natlab_varying_map_randomized skymaze_irreversible_path_hard
    skymaze_irreversible_path_varied psychlab_arbitrary_visuomotor_mapping psychlab_continuous_recognition
    psychlab_sequential_comparison psychlab_visual_search explore_object_locations_small explore_object_locations_large
    explore_obstructed_goals_small explore_obstructed_goals_large explore_goal_locations_small
    explore_goal_locations_large explore_object_rewards_few explore_object_rewards_many
    """.split()
)

# The levels of DMLab-30 that are only for testing: the held-out parts of the two rooms levels named _train.
DMLAB_30_TEST: tuple[str, ...] = ("rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test")

# Levels at the top of game_scripts/levels: those of the first release.
FIRST_LEVELS: tuple[str, ...] = tuple(
    """
    lt_chasm lt_hallway_slope lt_horseshoe_color lt_space_bounce_hard nav_maze_random_goal_01 nav_maze_random_goal_02
    nav_maze_random_goal_03 nav_maze_static_01 nav_maze_static_02 nav_maze_static_03 seekavoid_arena_01
    stairway_to_melon
    """.split()
)

_DMLAB_30_FOLDER = "contributed/dmlab30/"

# Test settings of IMPALA and of SEED RL's adapter: held-out levels can be loaded, and every seed is mixed with this
# number, so that no test episode was a training episode.
TEST_SETTINGS = {"allowHoldOutLevels": "true", "mixerSeed": str(0x600D5EED)}

FRAMES_PER_SECOND = 60  # the frame rate of DMLab-30's levels and of the published results

# Settings that have their own fields. The name of a level is a separate argument.
_ELSEWHERE = {"width": "environment.width", "height": "environment.height", "levelName": "environment.id"}
# Commands for the engine's console. Without this one, each simulator listens on two UDP ports of all interfaces.
_CONSOLE, _NO_NETWORK = "appendCommand", "+set net_enabled 0"
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def check_level(level: str) -> None:
    """Refuse an unknown level; one named by its path ("tests/empty_room_test") is left to the simulator.

    Raises:
        UsageError: names the nearest levels.
    """
    known = (*DMLAB_30, *DMLAB_30_TEST, *FIRST_LEVELS)
    if "/" in level or level in known:
        return
    near = nearest(level, known)
    hint = f"did you mean {' or '.join(near)}?" if near else "one of your own is named by its path: my_folder/my_level"
    raise UsageError(f"environment.id {level!r} is not a level of DeepMind Lab; {hint}")


def level_path(level: str) -> str:
    """The path of a level below game_scripts/levels; levels of DMLab-30 are given without their folder."""
    return _DMLAB_30_FOLDER + level if level in DMLAB_30 or level in DMLAB_30_TEST else level


def lab_settings(config: LabConfig) -> dict[str, str]:
    """All settings of the simulator and the level, as strings, as Lab requires.

    `environment.kwargs` comes last: "datasetPath", which two psychlab levels need, or a level's own options.

    Raises:
        UsageError: a setting that has its own field, has an invalid name, or is not text, a number, true or false.
    """
    settings = {
        "width": str(config.width),
        "height": str(config.height),
        "fps": str(FRAMES_PER_SECOND),
        "logLevel": "WARN",
        _CONSOLE: _NO_NETWORK,
    }
    if level_path(config.id).removeprefix(_DMLAB_30_FOLDER) in DMLAB_30_TEST:
        settings.update(TEST_SETTINGS)
    for name, value in config.kwargs.items():
        if name in _ELSEWHERE:
            raise UsageError(f"environment.kwargs must not hold {name!r}: set {_ELSEWHERE[name]}")
        if not _SETTING.fullmatch(name) or not isinstance(value, (str, int, float)):
            raise UsageError(
                f"environment.kwargs holds {name} = {value!r}: a setting of DeepMind Lab is text, a number, "
                "or true or false"
            )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        settings[name] = f"{_NO_NETWORK} {text}" if name == _CONSOLE else text
    return settings
