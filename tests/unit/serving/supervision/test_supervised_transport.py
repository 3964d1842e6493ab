"""A supervised engine is reached over TLS, knows no secrets, and systemd hears how it stands."""

import json
from pathlib import Path

from slipstream.hardware import Host
from tests.unit.serving.access.certificates import make_pair
from tests.unit.serving.supervision.fake_engine import Stage
from tests.unit.serving.supervision.test_supervisor import host, hurry, until_ready

__all__ = ["host", "hurry"]

SECRETS = {
    "HF_TOKEN": "hf_1",
    "HUGGING_FACE_HUB_TOKEN": "hf_1",
    "HF_TOKEN_PATH": "/run/secrets/hf",
    "AWS_SECRET_ACCESS_KEY": "aws",
    "AWS_SESSION_TOKEN": "aws",
    "S3_SECRET_ACCESS_KEY": "s3",
    "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/google",
    "OPENAI_API_KEY": "sk-1",
    "ANTHROPIC_API_KEY": "sk-2",
    "SLIPSTREAM_API_KEY": "sk-3",
    "VLLM_API_KEY": "sk-4",
    "GITHUB_TOKEN": "ghp_1",
    "DATABASE_PASSWORD": "p",
    "SSH_AUTH_SOCK": "/run/agent",
}
KEPT = {
    "HF_HOME": "/models",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CACHE_ROOT": "/cache",
    "CUDA_VISIBLE_DEVICES": "0",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
    "KEYBOARD": "x",
}


def test_an_engine_with_a_certificate_becomes_ready(tmp_path: Path, host: Host) -> None:
    pair = make_pair(tmp_path / "tls")
    stage = Stage(tmp_path, host, words=pair.flags)
    stage.serve(until_ready)
    assert str(stage.run.url).startswith("https://127.0.0.1:")
    assert f"ready at {stage.run.url}" in stage.messages()
    assert stage.run.state == "stopped"


def test_an_engine_that_is_offline_has_no_secrets(tmp_path: Path, host: Host) -> None:
    stage = Stage(tmp_path, host)
    stage.environment |= SECRETS | KEPT
    stage.serve(until_ready)
    given = json.loads((stage.fake / "environment").read_text())
    assert sorted(given.keys() & SECRETS.keys()) == []
    assert {name: given.get(name) for name in KEPT} == KEPT
    assert given["HF_HUB_OFFLINE"] == "1"
