"""`Patch`, and applying one: only to the known version and source, once, with one line in the log.

A module that vLLM has not imported yet is patched when it does: importing an attention backend
costs a second, and most processes never need it.
"""

import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType
from typing import Any

# Below vLLM's own logger, whose handler it so has. All is told as warnings: where a config is made,
# vLLM loads plugins before it sets its logger up, and Python then shows nothing less.
log = logging.getLogger("vllm.slipstream")
_handled: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One patch; `change` gets the module if its source is the known one, or one of several.

    A patch with a `variable` is for those who set it.
    """

    name: str
    since: tuple[int, int]
    before: tuple[int, int]
    module: str
    touches: str
    source_sha256: str | tuple[str, ...]
    symptom: str
    proof: str
    upstream: str
    drop_when: str
    change: Callable[[Any], None]
    variable: str | None = None

    @property
    def known_sources(self) -> tuple[str, ...]:
        """Return the SHA-256 of every source that it was written for."""
        known = self.source_sha256
        return (known,) if isinstance(known, str) else known


def apply(names: Iterable[str], patches: Mapping[str, Patch], version: Sequence[int | str]) -> None:
    """Apply each named patch, now or when its module comes; what was handled before is left."""
    for name in filter(None, map(str.strip, names)):
        if name in _handled:
            continue
        _handled.add(name)
        patch = patches.get(name)
        if patch is None:
            _refuse(name, "there is no patch of this name")
        elif not patch.since <= tuple(version[:2]) < patch.before:
            _refuse(name, f"it is not for vLLM {'.'.join(map(str, version))}")
        elif patch.variable and not os.environ.get(patch.variable):
            _refuse(name, f"{patch.variable} is not set")
        else:
            when_imported(patch.module, partial(_change, patch))


def _change(patch: Patch, module: ModuleType) -> None:
    if hash_source(module, patch.touches) not in patch.known_sources:
        _refuse(patch.name, "the source differs from the one it was written for")
        return
    patch.change(module)
    log.warning("slipstream patch %s: applied", patch.name)


def _refuse(name: str, why: str) -> None:
    log.warning("slipstream patch %s: not applied: %s", name, why)


def hash_source(module: ModuleType, path: str) -> str | None:
    """Return the SHA-256 of the source of what lies at a path in a module, None if it has none."""
    try:
        source = inspect.getsource(attrgetter(path)(module))
    except (AttributeError, OSError, TypeError):
        return None
    return sha256(source.encode()).hexdigest()


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call a function with a module once it is imported, or now if it already is."""
    if (module := sys.modules.get(name)) is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Awaited(name, then))


class _Awaited(MetaPathFinder):
    """An import hook for one module that calls a function after the module's code has run."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then, self.came = name, then, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for the awaited module only, and only once."""
        if fullname != self.name or self.came:
            return None
        self.came = True
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: ModuleType) -> None:
                execute(module)
                self.then(module)

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
