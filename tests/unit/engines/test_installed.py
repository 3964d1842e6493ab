"""A missing engine is named before anything is done, with the command that installs it."""

import pytest

from slipstream.cli.main import run
from slipstream.engines.installed import require_engine
from slipstream.errors import MissingPartError
from slipstream.hardware import load_host, software


def test_without_an_engine_it_says_what_to_install() -> None:
    host = load_host("cpu-server")
    require_engine(host)
    bare = host.model_copy(update={"software": host.software.model_copy(update={"engine": None})})
    with pytest.raises(MissingPartError) as refused:
        require_engine(bare, extra="demo")
    assert refused.value.hint == "pip install 'slipstream[demo]'"


@pytest.mark.parametrize("verb", ["serve", "compare", "verify", "tune", "demo"])
def test_every_verb_that_starts_an_engine_asks_for_one_first(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(software, "ENGINE_DISTRIBUTIONS", ())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [] if verb == "demo" else ["Qwen/Qwen3-8B", "--context", "512"]
    assert run([verb, *words], {}) == 1
    assert "hint: pip install 'slipstream[" in capsys.readouterr().err
