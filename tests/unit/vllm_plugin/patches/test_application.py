"""A patch changes the source that it was written for, once, and says so; anything else stays."""

import importlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slipstream.vllm_plugin.patches import VARIABLE, application
from slipstream.vllm_plugin.patches.application import Patch, apply

METHOD = "    def count(self):\n        return 1\n"
SOURCE = f"class Engine:\n{METHOD}"
VERSION = (0, 32, 0)

Load = Callable[..., Any]
Said = Callable[[], list[str]]


def count_once_more(module: Any) -> None:
    """Wrap, so that a change that was made twice can be told from one."""
    count = module.Engine.count
    module.Engine.count = lambda self: count(self) + 1


PATCH = Patch(
    name="more",
    since=(0, 32),
    before=(0, 33),
    module="patched_engine",
    touches="Engine.count",
    source_sha256=sha256(METHOD.encode()).hexdigest(),
    symptom="it counts too little",
    proof="here",
    upstream="nowhere",
    drop_when="it counts",
    change=count_once_more,
)


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide each test a process that has handled nothing and imported no engine."""
    monkeypatch.setattr(application, "_handled", set())
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield
    sys.modules.pop(PATCH.module, None)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Yield the lines so far, caught at the logger itself: vLLM lets none pass to the root."""
    log = logging.getLogger("vllm.slipstream")
    log.addHandler(caplog.handler)
    log.propagate = False
    yield lambda: [record.getMessage() for record in caplog.records]
    log.removeHandler(caplog.handler)
    log.propagate = True


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Return an engine of a source, imported as vLLM imports its parts."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(source: str = SOURCE) -> ModuleType:
        (tmp_path / f"{PATCH.module}.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module(PATCH.module)

    return imported


def name(*names: str, version: tuple[int | str, ...] = VERSION, patch: Patch = PATCH) -> None:
    apply(names, {patch.name: patch}, version)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_a_module_is_patched_once_whether_it_is_there_or_comes_later(
    load: Load, said: Said, early: bool, times: int
) -> None:
    if early:
        load()
    for _ in range(times):
        name(*["more", " more"][:times])
    assert (PATCH.module in sys.modules, len(said())) == (early, early)
    assert load().Engine().count() == 2
    assert said() == ["slipstream patch more: applied"]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(SOURCE.replace("return 1", "return 1 + 0"), id="changed"),
        pytest.param("class Engine:\n    pass\n", id="gone"),
        pytest.param("class Engine:\n    count = 1\n", id="no longer a function"),
        pytest.param('exec("class Engine:\\n    def count(self): return 1")', id="no source"),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_another_source_is_left_alone(source: str, early: bool, load: Load, said: Said) -> None:
    untouched: list[object] = []
    patch = replace(PATCH, change=untouched.append)
    if early:
        load(source)
    name("more", patch=patch)
    load(source)
    assert untouched == []
    why = "the source differs from the one it was written for"
    assert said() == [f"slipstream patch more: not applied: {why}"]


@pytest.mark.parametrize(
    ("version", "is_applied"),
    [
        ((0, 31, 9), False),
        ((0, 32, 0, "rc1"), True),
        ((0, 32, 4), True),
        ((0, 33, 0), False),
        ((1, 0, 0), False),
        ((0, 0, "dev"), False),
    ],
)
def test_another_version_is_left_alone(
    version: tuple[int | str, ...], is_applied: bool, load: Load, said: Said
) -> None:
    engine = load()
    name("more", version=version)
    assert engine.Engine().count() == 1 + is_applied
    shown = ".".join(map(str, version))
    told = "applied" if is_applied else f"not applied: it is not for vLLM {shown}"
    assert said() == [f"slipstream patch more: {told}"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_patch_may_know_the_sources_of_several_versions(
    place: int, load: Load, said: Said
) -> None:
    known = ["0" * 64, "1" * 64]
    known[place] = sha256(METHOD.encode()).hexdigest()
    name("more", patch=replace(PATCH, source_sha256=tuple(known)))
    assert load().Engine().count() == 2
    assert said() == ["slipstream patch more: applied"]


def test_none_of_several_known_sources_is_left_alone(load: Load) -> None:
    name("more", patch=replace(PATCH, source_sha256=("0" * 64, "1" * 64)))
    assert load().Engine().count() == 1


@pytest.mark.parametrize(("value", "is_applied"), [(None, False), ("", False), ("31", True)])
def test_a_patch_with_a_variable_is_for_those_who_set_it(
    value: str | None, is_applied: bool, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COUNT_MORE", raising=False)
    if value is not None:
        monkeypatch.setenv("COUNT_MORE", value)
    name("more", patch=replace(PATCH, variable="COUNT_MORE"))
    assert load().Engine().count() == 1 + is_applied


def test_a_name_that_nobody_knows_is_told_and_the_others_are_applied(
    load: Load, said: Said
) -> None:
    engine = load()
    name("less", "", "more")
    assert engine.Engine().count() == 2
    assert said() == [
        "slipstream patch less: not applied: there is no patch of this name",
        "slipstream patch more: applied",
    ]


def test_a_module_that_cannot_be_found_fails_as_it_would_without_a_patch(said: Said) -> None:
    name("more")
    with pytest.raises(ModuleNotFoundError, match=PATCH.module):
        importlib.import_module(PATCH.module)
    assert said() == []


@pytest.mark.parametrize("names", [None, ""])
def test_without_the_variable_nothing_happens_and_nothing_is_imported(names: str | None) -> None:
    script = (
        "import sys\n"
        "from slipstream.vllm_plugin.patches import apply_named\n"
        "known, finders = set(sys.modules), list(sys.meta_path)\n"
        "apply_named()\n"
        "print(set(sys.modules) == known, sys.meta_path == finders, 'vllm' in sys.modules)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script],
        env={} if names is None else {VARIABLE: names},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (outcome.stdout, outcome.stderr) == ("True True False\n", "")
