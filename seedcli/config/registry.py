"""Registries: what a name in a configuration stands for.

A name is that of a built-in, that of an entry point of an installed package, or `module:Class` for a module that can be
imported, usually from the working folder. Registries hold only the places of built-ins, as text: neither TensorFlow nor
a simulator is imported before a class is loaded.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from functools import cached_property
from importlib import metadata
from typing import Any, NamedTuple

from seedcli.config.sections import Section
from seedcli.errors import UsageError, first_line
from seedcli.tensorflow_import import import_tensorflow


class BuiltIn(NamedTuple):
    """The places of a built-in, each "module:Name".

    Attributes:
        target: the class.
        config: its configuration, in a module that is quick to import.
    """

    target: str
    config: str


class Registry:
    """The choices of one configuration key.

    Args:
        key: e.g. "agent.algorithm".
        noun: what one choice is, e.g. "algorithm".
        group: entry-point group of installed packages.
        base: the class that a choice's `Config` must extend.
        built_in: built-in choices by name.
        needs_tensorflow: choices are code for TensorFlow, which is then imported first, without its messages.

    Attributes:
        key, group, built_in: as given.
    """

    def __init__(
        self,
        key: str,
        noun: str,
        group: str,
        base: type[Section],
        built_in: Mapping[str, BuiltIn],
        *,
        needs_tensorflow: bool = True,
    ) -> None:
        self.key = key
        self._noun = noun
        self.group = group
        self._base = base
        self.built_in = built_in
        self._needs_tensorflow = needs_tensorflow

    @cached_property
    def installed(self) -> dict[str, metadata.EntryPoint]:
        """Entry points by name, without those that are named like a built-in."""
        return {e.name: e for e in metadata.entry_points(group=self.group) if e.name not in self.built_in}

    def names(self) -> list[str]:
        """The names of built-in and installed choices."""
        return [*self.built_in, *sorted(self.installed)]

    def config(self, name: str) -> type[Any]:
        """The configuration class of a choice.

        Raises:
            UsageError: there is no such choice, it cannot be imported, or its `Config` does not extend the base.
        """
        if name in self.built_in:
            return self._checked(name, _resolve(self.built_in[name].config))
        return self._checked(name, getattr(self.load(name), "Config", self._base))

    def load(self, name: str) -> Any:
        """The class of a choice.

        Raises:
            UsageError: there is no such choice, or it cannot be imported.
        """
        if name in self.built_in:
            return _resolve(self.built_in[name].target)
        if name not in self.installed and ":" not in name:
            raise UsageError(self._unknown(name))
        if self._needs_tensorflow:
            import_tensorflow()
        if name in self.installed:
            place = self.installed[name].value
            try:
                found = self.installed[name].load()
            except (Exception, SystemExit) as error:
                raise UsageError(
                    f'{self.key} = "{name}" cannot be loaded from {place}: {first_line(error)} (--debug shows where)'
                ) from error
            if not isinstance(found, type):
                raise UsageError(f'{self.key} = "{name}": the entry point {place} is not a class')
            return found
        return self._from_module(name)

    def _from_module(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        if module.endswith(".py"):
            right = module.removesuffix(".py").removeprefix("./").replace("/", ".")
            raise UsageError(f'{self.key} = "{name}": write {right}:{attribute}, without .py')
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f'{self.key} = "{name}": write module:Class, such as my_module:MyClass')
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                raise UsageError(
                    f'{self.key} = "{name}": there is no module {error.name}; start seed in the folder that holds it, '
                    "install it, or put its folder on PYTHONPATH"
                ) from error
            raise self._import_error(name, error) from error
        except (Exception, SystemExit) as error:  # a script without a main guard may end with sys.exit
            raise self._import_error(name, error) from error
        target = getattr(found, attribute, None)
        if not isinstance(target, type):
            near = difflib.get_close_matches(attribute, [n for n, x in vars(found).items() if isinstance(x, type)], n=1)
            hint = f"; did you mean {module}:{near[0]}" if near else ""
            raise UsageError(
                f'{self.key} = "{name}": module {module} has no class {attribute or "without a name"}{hint}'
            )
        return target

    def _import_error(self, name: str, error: BaseException) -> UsageError:
        return UsageError(f'{self.key} = "{name}" cannot be imported: {first_line(error)} (--debug shows where)')

    def _checked(self, name: str, config: Any) -> type[Any]:
        if not (isinstance(config, type) and issubclass(config, self._base)):
            raise UsageError(f'{self.key} = "{name}": its Config must be a subclass of {self._base.__name__}')
        for key, field in config.model_fields.items():
            if field.is_required():
                raise UsageError(f'{self.key} = "{name}": the key {key} of its Config needs a default value')
        return config

    def _unknown(self, name: str) -> str:
        names = self.names()
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        return f'{self.key} = "{name}" is not a known {self._noun}: {hint} (module:Class names one of your own)'


def _resolve(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
