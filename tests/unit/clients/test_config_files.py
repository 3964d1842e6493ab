"""Our entries get into a file and everything else stays: keys, order, comments, values."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipstream.clients.config_files import ConfigFile, MergeError, merge

HERE = Path("here")
TOML = """# my settings
model = "gpt-9"  # the usual
approval_policy = "never"

[model_providers.other]
base_url = "https://example.org/v1"

[model_providers.slipstream]
# added by hand
base_url = "http://old/v1"
request_max_retries = 4

[tui]
theme = "dark"
"""


def want(form: Any, entries: dict[str, Any], list_key: str | None = None) -> ConfigFile:
    return ConfigFile(path=HERE, form=form, entries=entries, list_key=list_key, text="")


def test_toml_keeps_comments_tables_and_keys() -> None:
    provider = {"base_url": "http://new/v1", "wire_api": "responses"}
    entries = {"model": "m", "model_providers": {"slipstream": provider}}
    text, changed = merge(TOML, want("toml", entries))
    assert changed == (
        *("model", "model_providers.slipstream.base_url", "model_providers.slipstream.wire_api"),
    )
    read, before = tomllib.loads(text), tomllib.loads(TOML)
    assert read["model"] == "m"
    assert read["model_providers"]["slipstream"] == {"request_max_retries": 4, **provider}
    assert read["model_providers"]["other"] == before["model_providers"]["other"]
    assert (read["tui"], read["approval_policy"]) == (before["tui"], "never")
    assert text.startswith('# my settings\nmodel = "m"  # the usual\n')
    assert "# added by hand\n" in text
    assert merge(text, want("toml", entries)) == (text, ())
    new = {"model": "m", "window": 5, "a": {"b": {"c": "x", "d": True}}}
    assert tomllib.loads(merge("", want("toml", new))[0]) == new


@pytest.mark.parametrize(
    "text",
    [
        'a = """\nmodel = "not a key"\n"""\n',
        "model_providers = { slipstream = { base_url = 'x' } }\n",
        '"model" = "quoted"\n',
    ],
)
def test_toml_that_lines_cannot_change_is_left_alone(text: str) -> None:
    entries = {"model": "m", "model_providers": {"slipstream": {"base_url": "y"}}}
    with pytest.raises(MergeError, match=r"cannot be (changed line by line|read)"):
        merge(text, want("toml", entries))


def test_json_keeps_order_indentation_and_other_entries() -> None:
    old = {"theme": "dark", "env": {"MY_TOKEN": "secret", "A": "old"}, "list": [1, {"b": None}]}
    text, changed = merge(json.dumps(old, indent=4), want("json", {"env": {"A": "new", "Ü": "ü"}}))
    assert changed == ("env.A", "env.Ü")
    assert text.splitlines()[1] == '    "theme": "dark",'
    assert '"Ü": "ü"' in text
    assert json.loads(text) == {**old, "env": {"MY_TOKEN": "secret", "A": "new", "Ü": "ü"}}


def test_yaml_keeps_comments() -> None:
    old = "# mine\ndark-mode: true\nmodel: other\nread:\n  - a.md  # first\n"
    entries = {"model": "openai/m", "openai-api-base": "http://x/v1"}
    text, _ = merge(old, want("yaml", entries))
    assert yaml.safe_load(text) == {"dark-mode": True, "read": ["a.md"], **entries}
    assert "# mine\n" in text
    assert "# first\n" in text


def test_an_entry_of_a_yaml_list_is_replaced_and_the_others_stay() -> None:
    old = "# models\n- model_id: a\n  api_base: x  # mine\n- model_id: ours\n  api_base: old\n"
    entry = {"model_id": "ours", "api_base": "new"}
    text, changed = merge(old, want("yaml", entry, "model_id"))
    assert changed == ("model_id ours",)
    assert yaml.safe_load(text) == [{"model_id": "a", "api_base": "x"}, entry]
    assert text.startswith("# models\n- model_id: a\n  api_base: x  # mine\n")
    assert merge(text, want("yaml", entry, "model_id")) == (text, ())
    assert yaml.safe_load(merge("", want("yaml", entry, "model_id"))[0]) == [entry]


JSON = ("{", "[]", '"text"', "{} // comment", "{'a': 1}", "[" * 9999)
LISTS = ("a: b\n", "  - model_id: a\n", "- [\n", "[{model_id: a}]\n")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *((text, want("json", {"a": 1})) for text in JSON),
        *((text, want("yaml", {"model_id": "ours"}, "model_id")) for text in LISTS),
    ],
)
def test_what_has_another_form_is_left_alone(text: str, wanted: ConfigFile) -> None:
    with pytest.raises(MergeError):
        merge(text, wanted)


KEYS = st.text("abc", min_size=1, max_size=2)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.one_of(st.integers(-9, 9), st.booleans(), TEXTS)
OBJECTS = st.dictionaries(KEYS, st.one_of(SCALARS, st.dictionaries(KEYS, SCALARS)))


@given(OBJECTS, OBJECTS)
def test_whatever_json_holds_is_kept(old: dict[str, Any], new: dict[str, Any]) -> None:
    text, changed = merge(json.dumps(old), want("json", new))
    read = json.loads(text)
    assert {key: read[key] for key in old if key not in new} == {
        key: value for key, value in old.items() if key not in new
    }
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            value = {**before, **value}
        assert read[key] == value
    assert (changed == ()) is (read == old)
