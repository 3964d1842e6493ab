"""What strangers may read stays, and everything else goes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.serving.support.redaction import Redactor, make_redactor, show_model, show_value

REDACTOR = Redactor(
    names={"wilhelmina": "[name]", "jo": "[name]", "spark-7f": "[host]"},
    secrets=frozenset({"correct horse battery"}),
)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("api_key=hunter2, port=8000", "api_key=[secret], port=8000"),
        ("{'api_key': ['hunter2'], 'seed': 0}", "{'api_key': [[secret]], 'seed': 0}"),
        ("--api-key hunter2 --seed 0", "--api-key [secret] --seed 0"),
        ("Authorization: Bearer hunter2", "Authorization: Bearer [secret]"),
        ("the password correct horse battery", "the password [secret]"),
        ("got hf_abcdefGHIJ12345678", "got [secret]"),
        ("id 3f9a8b7c6d5e4f3a2b1c", "id [secret]"),
        ("key=AbC-dEf_0123456789-ghIJKL", "key=[secret]"),
        ("read /home/wilhelmina/m/config.json", "read [path]"),
        ("read ~wilhelmina/.ssh/id_ed25519", "read [path]"),
        ("by Wilhelmina and jo on SPARK-7F", "by [name] and [name] on [host]"),
        ("jobs of major jo_2", "jobs of major [name]_2"),
        ("model acme/legal-13b", "model [name]"),
        ("model Qwen/Qwen3-8B", "model Qwen/Qwen3-8B"),
        ("from 10.1.2.3 and fe80::1ff:fe23:4567:890a", "from [address] and [address]"),
        ("at 127.0.0.1 11:22:33", "at 127.0.0.1 11:22:33"),
        ("mail to ann@example.org", "mail to [address]"),
        ("see https://acme.example/x?token=1", "see [url]"),
        ("connect to build.acme.internal", "connect to [name]"),
        (
            "template '{{ Be kind to Ann }}', dtype 'bfloat16'",
            "template '[text]', dtype 'bfloat16'",
        ),
        ("template '{{ Be kind", "template [text]"),
        ("File /x/site-packages/vllm/core.py", "File .../site-packages/vllm/core.py"),
        ("32,896 tokens, 1.55/23.54 GiB, 100%", "32,896 tokens, 1.55/23.54 GiB, 100%"),
        ("grüße", "gr??e"),
    ],
)
def test_a_line_is_cleaned(line: str, shown: str) -> None:
    assert REDACTOR.clean(line) == shown


@settings(max_examples=40)
@given(st.text(), st.text(), st.sampled_from(["wilhelmina", "spark-7f", "correct horse battery"]))
def test_a_known_name_or_secret_never_survives(before: str, after: str, planted: str) -> None:
    assert planted not in REDACTOR.clean(before + planted + after).lower()


@settings(max_examples=40)
@given(st.text(alphabet=st.characters(exclude_characters="'\\"), min_size=1, max_size=40))
def test_a_quoted_text_never_survives(text: str) -> None:
    prompt = f"Dear Doctor {text}"
    assert "Dear Doctor" not in REDACTOR.clean(f"prompt: '{prompt}', max 5")


def test_the_environment_names_people_machines_and_secrets() -> None:
    environment = {"USER": "wilhelmina", "HOME": "/home/hubertus", "MY_TOKEN": "s3cr3t-value"}
    cleaned = make_redactor(environment, {}).clean("wilhelmina hubertus s3cr3t-value")
    assert cleaned == "[name] [name] [secret]"


def test_only_published_models_and_settings_are_shown() -> None:
    assert show_model("qwen/qwen3-8b") == "qwen/qwen3-8b"
    assert show_model("acme/legal-13b") == "[model]"
    assert show_model(None) is None
    assert show_value("--max-model-len", "4096") == "4096"
    assert show_value("--dtype", "bfloat16") == "bfloat16"
    assert show_value("--chat-template", "Be kind to Ann") == "[text]"
    assert show_value("--api-key", "hunter2") == "[text]"
