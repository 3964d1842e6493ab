"""What strangers may read stays, and everything else goes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.serving.support.redaction import (
    Redactor,
    list_skeleton,
    make_redactor,
    show_model,
    show_value,
)

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
        ("the password is correct horse", "the password is [secret]"),
        ("api-key correct horse battery, port 1", "api-key [secret], port 1"),
        ("Bearer\thunter2", "Bearer [secret]"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq", "[secret]"),
        ("key abcdefghijklmnopqrstuvwxyzabcdefghij", "key [secret]"),
        ("host db-prod-7 refused", "host [host] refused"),
        ("connecting to spark1 as host=node9", "connecting to [host] as host=[host]"),
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
        ("connect to fe80::1%eth0", "connect to [address]"),
        ("connect to fe80::1, server fd00:7::9%enp1s0:", "connect to [address], server [address]:"),
        ("connect to node7:8000", "connect to [host]:8000"),
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
        ("No module named 'torchvision.ops'", "No module named 'torchvision.ops'"),
        ("operator torchvision::nms does not exist", "operator torchvision::nms does not exist"),
        ("No module named 'acme_legal'", "No module named '[text]'"),
        ("asked 'vllm. what is it?'", "asked '[text]'"),
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


def test_of_a_key_over_several_lines_of_a_log_nothing_is_shown() -> None:
    said = ["with -----BEGIN RSA PRIVATE KEY-----", "MIIEabcd", "-----END RSA PRIVATE KEY-----"]
    log = "\n".join(f"INFO 11-18 10:00:00 [core.py:12] {line}" for line in (*said, "loaded"))
    shown = [line.rpartition("] ")[2] for line in list_skeleton(log, REDACTOR, is_whole=True)]
    assert shown == ["with [secret]", "loaded"]
    # After the start, no request hides what follows it.
    later = log.replace("loaded", "Application startup complete").replace(said[2], "no end")
    later = f"{later}\n{log.replace('INFO', 'ERROR')}".replace(said[2], "no end")
    assert list_skeleton(later, REDACTOR, is_whole=True)[-1].startswith("ERROR 11-18")
