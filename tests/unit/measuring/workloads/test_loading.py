"""One entry for all prompts: by name, from files, so many of each class, and only what fits."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError, SlipstreamError, UsageError
from slipstream.measuring.workloads import Prompt, Workload, load_workload
from slipstream.measuring.workloads.long_context import SIZES
from slipstream.measuring.workloads.shipped import FAMILIES, KINDS


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def list_ids(workload: Workload) -> list[str]:
    return [prompt.id for prompt in workload.prompts]


def refuse(*names: str, **options: Any) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        load_workload(names, **options)
    return caught.value


def test_classes_come_by_name_in_the_order_named_and_once() -> None:
    workload = load_workload(["prose", "code", "prose"])
    assert workload.kinds == ("prose", "code")
    assert len(set(list_ids(workload))) == len(workload.prompts)
    assert {prompt.kind for prompt in workload.warm_up} == {"prose", "code"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_all_its_classes(family: str) -> None:
    workload = load_workload([family], most_per_kind=1)
    assert workload.kinds == FAMILIES[family]
    assert [len(workload.list_units(kind)) for kind in workload.kinds] == [1] * len(workload.kinds)


def test_a_file_and_a_class_make_one_workload(tmp_path: Path) -> None:
    path = write(tmp_path / "traffic", "a", "", "b")
    workload = load_workload(["json", path])
    assert workload.kinds == ("json", "traffic")
    assert workload.left_out == {f"{path}:2": "empty content"}


def test_a_published_set_is_named_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path / "test.jsonl", {"question": "1+1?"}, {"question": "1+2?"})
    for name in (f"gsm8k:{path}", "gsm8k:~/test.jsonl"):
        assert list_ids(load_workload([name])) == ["gsm8k-1", "gsm8k-2"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("kode", "code"), ("humaneval", "humaneval:PATH"), ("long-64k", "long-4k"), ("xyz", None)],
)
def test_an_unknown_name_is_told_what_to_type(name: str, meant: str | None) -> None:
    error = refuse("code", name)
    assert isinstance(error, UsageError)
    assert error.message == f"there is no workload {name}"
    assert ("did you mean" in error.hint) == (meant is not None)
    assert error.hint.startswith(f"did you mean {meant}? use " if meant else "use ")
    assert all(known in error.hint for known in (*KINDS, *FAMILIES, "mtbench:PATH", "JSONL"))


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    assert refuse().hint.startswith("use code, ")
    for name in (str(tmp_path / "none.jsonl"), f"mbpp:{tmp_path / 'none'}"):
        assert refuse(name).message.startswith(f"cannot read {tmp_path}/none")
    for limit in ("most_per_kind", "context", "max_tokens"):
        assert refuse("code", **{limit: 0}).message == f"{limit.replace('_', '-')} is 0"
    error = refuse("code", context=100)
    assert isinstance(error, InvalidInputError)
    assert error.details == ("longer, with its answer, than a context of 100 tokens: 25",)


def test_the_same_seed_draws_the_same_prompts() -> None:
    drawn = [load_workload(["code", "prose"], most_per_kind=6, seed=seed) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1]
    assert list_ids(drawn[0]) != list_ids(drawn[2])
    assert Counter(prompt.kind for prompt in drawn[0].prompts) == {"code": 6, "prose": 6}


@given(some.integers(), some.integers(1, 30), some.integers(1, 30))
def test_more_prompts_include_the_fewer(seed: int, one: int, other: int) -> None:
    fewer, more = (
        list_ids(load_workload(["reasoning"], most_per_kind=most, seed=seed))
        for most in sorted((one, other))
    )
    assert len(fewer) == min(one, other, 24)
    assert [name for name in more if name in fewer] == fewer


def test_a_small_context_keeps_what_fits_and_names_the_rest() -> None:
    workload = load_workload(["prose", "long", "random"], context=1100)
    assert set(workload.kinds) == {"prose", "random"}
    left = Counter(name.rsplit("-", 1)[0] for name in workload.left_out)
    assert {kind: left[kind] for kind in SIZES} == dict.fromkeys(SIZES, 24)
    assert left["prose"] + len([one for one in workload.prompts if one.kind == "prose"]) == 25
    why = "longer, with its answer, than a context of 1,100 tokens"
    assert set(workload.left_out.values()) == {why}
    assert {prompt.kind for prompt in workload.warm_up} == {"prose", "random"}


def test_shorter_answers_make_room() -> None:
    full = load_workload(["all"], context=2048, max_tokens=256)
    assert len([one for one in full.prompts if one.kind not in SIZES]) == 170
    assert max(prompt.max_tokens for prompt in (*full.prompts, *full.warm_up)) == 256


def test_the_targets_tokenizer_decides_what_fits() -> None:
    assert len(load_workload(["prose"], context=1100, most_per_kind=10).prompts) == 10
    assert len(load_workload(["code"], context=900, count_tokens=lambda _: 1).prompts) > 20
    assert "no usable prompt" in refuse("code", context=900, count_tokens=lambda _: 900).message


def test_the_least_length_of_an_answer_does_not_outgrow_the_most(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "a", "min_tokens": 300, "max_tokens": 400})
    (prompt,) = load_workload([path], max_tokens=128).prompts
    assert (prompt.max_tokens, prompt.extra) == (128, {"min_tokens": 128})
    assert load_workload([path], max_tokens=500).prompts[0].extra == {"min_tokens": 300}


def test_own_prompts_are_warmed_up_with_others_of_the_file_or_with_small_talk(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "own.jsonl", *(f"Question {number}" for number in range(9)))
    workload = load_workload([path], most_per_kind=3)
    warm_up = [prompt for prompt in workload.warm_up if prompt.kind == "own"]
    assert len(warm_up) == 4
    assert not {prompt.id for prompt in warm_up} & set(list_ids(workload))
    assert {prompt.kind for prompt in load_workload([path]).warm_up} == {"dialogue"}


def test_the_hash_tells_what_is_asked_and_not_where_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here = load_workload([write(tmp_path / "own.jsonl", "a", "b")])
    there = load_workload([write(tmp_path / "other" / "own.jsonl", "a", "b")])
    changed = load_workload([write(tmp_path / "own.jsonl", "a", "c")])
    assert here.name != there.name
    assert here.sha256 == there.sha256 != changed.sha256
    assert here.sha256 != load_workload([write(tmp_path / "own.jsonl", "b", "a")]).sha256


def test_a_workload_loads_back_identically(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", {"prompt": "a", "temperature": 0.5})
    workload = load_workload(["tools", "json", "random", path])
    again = Workload.model_validate_json(workload.to_json())
    assert again == workload
    assert again.sha256 == workload.sha256
    assert isinstance(again.prompts[0], Prompt)
