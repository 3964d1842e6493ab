"""One run with a certificate, shared by what is shown of TLS and by the clients that ask it."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import httpx
import pytest

from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.access.tls import TlsCertificate
from tests.engine.service import Service
from tests.unit.serving.access.certificates import Pair, make_pair

CACHED_TOKENS = "--enable-prompt-tokens-details"
# The marks of Llama 3.1, by which the plan names the parser of tool calls itself.
TEMPLATE = """
{%- if tools %}<|start_header_id|>system<|end_header_id|>
Answer with {"name": NAME, "parameters": ARGUMENTS}. The tools are:
{%- for tool in tools %}
{{ tool.function | tojson }}
{%- endfor %}
{% endif %}
{%- for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}
{%- endfor %}
{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>
{% endif %}"""


@dataclass(frozen=True)
class Secured:
    """A served run, and the certificate that it was started with."""

    service: Service
    pair: Pair

    def ask(self, path: str) -> httpx.Response:
        context = TlsCertificate(self.pair.file, self.pair.key).pin()
        with httpx.Client(verify=context, trust_env=False, timeout=30) as client:
            return client.get(f"https://127.0.0.1:{self.service.port}{path}")

    def read_certificate(self) -> str:
        return ssl.get_server_certificate(("127.0.0.1", self.service.port))


@pytest.fixture(scope="package")
def secured(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    pair = make_pair(home / "tls", "localhost")
    family = home / target.name
    copytree(target, family)
    (family / "chat_template.jinja").write_text(TEMPLATE)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        described = (family / name).read_text()
        (family / name).write_text(described.replace("<empty_output>", "<|python_tag|>"))
    service = Service(home, family, environment={"HF_TOKEN": "hf_secret", "AWS_REGION": "x"})
    words = (
        "--drafter",
        str(SHIPPED_DRAFTER),
        "--context",
        "2048",
        "--port",
        str(service.port),
        "--detach",
    )
    engine = ("--enforce-eager", "--dtype", "float32", *pair.flags, "--enable-ssl-refresh")
    try:
        service.command("serve", str(family), *words, "--", *engine, CACHED_TOKENS)
        yield Secured(service, pair)
    finally:
        service.end()
