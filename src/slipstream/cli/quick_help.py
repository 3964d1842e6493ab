"""Stand-ins for what a help does not need, since records take up to a second to import.

A verb's options are defined by its own module and by few others; while a help is printed, whatever
else these import is a stand-in that does nothing. A test holds that every help is the same without.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_SOURCE = Path(__file__).parents[2]
# What options are defined by, outside of `cli`.
_NEEDED = frozenset(
    {
        "",
        "clients.catalogue",
        "deployment.other_stacks",
        "engines.vllm_methods",
        "engines.vllm_tables",
        "errors",
        "fleet.record",
        "fleet.rolling.steps",
        "measuring.client.endpoint",
        "measuring.verifying.verification",
        "planning.settings.scheduling",
        "serving.access.keys",
        "serving.run",
        "steering.guardian",
        "steering.ledger",
        "training.run",
        "tuning.tuner",
        "units",
        "user_folders",
    }
)


def asks_for_help(words: Sequence[str]) -> bool:
    """Return whether a command line prints a help and does nothing else."""
    own = words[: words.index("--")] if "--" in words else words
    return bool(own) and (own[0] == "help" or not {"-h", "--help"}.isdisjoint(own))


class StandIns(MetaPathFinder, Loader):
    """Finds a stand-in for every module but the standard library's and those that are needed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, rest = name.partition(".")
        ours = first == "slipstream" and (rest in _NEEDED or rest.partition(".")[0] == "cli")
        if ours or first in sys.stdlib_module_names:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StandInModule(spec.name)
        # A needed module may lie in a package that is not.
        module.__path__ = [str(_SOURCE.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn


class _Anything(type):
    """Classes that are called, subscripted, combined and inherited from to no effect."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *_: object, **__: object) -> type:
        return cls

    def __getitem__(cls, _: object) -> type:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls

    def __ror__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[type]:
        return iter(())


class _StandIn(metaclass=_Anything):
    """What is imported from a module that is not needed."""
