"""The known clients, each with its variables, files and command.

Settings are those of the versions in docs/howto-agents.md, where each was run against an engine.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from slipstream.clients.apis import ChatCompletions, Messages, Responses
from slipstream.clients.client import Client, ConfigFile, Environment, Setup
from slipstream.clients.served import NO_KEY, ServedModel
from slipstream.measuring.client.endpoint import KEY_VARIABLE

# Under which clients list the server among others.
PROVIDER = "slipstream"
CHAT = "POST /v1/chat/completions"
MODELS = "GET /v1/models"


def _find_home(environment: Environment) -> Path:
    return Path(environment.get("HOME") or Path.home())


def _find_config(environment: Environment) -> Path:
    named = environment.get("XDG_CONFIG_HOME")
    return Path(named).expanduser() if named else _find_home(environment) / ".config"


def _trust(served: ServedModel, variable: str) -> dict[str, str]:
    if served.certificate is None:
        return {}
    return {variable: str(served.certificate.file.absolute())}


def _set_up_claude(served: ServedModel, environment: Environment) -> Setup:
    """Set one model for every role; settings override the shell, so other keys are cleared."""
    roles = ("FABLE", "OPUS", "SONNET", "HAIKU")
    variables = {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_MODEL": served.name,
        **{f"ANTHROPIC_DEFAULT_{role}_MODEL": served.name for role in roles},
        "ANTHROPIC_SMALL_FAST_MODEL": served.name,
        "CLAUDE_CODE_SUBAGENT_MODEL": served.name,
        # A line that changes with every request would come before all that could be cached.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if served.context is not None and served.answer_tokens is not None:
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(served.answer_tokens)
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(served.context)
        variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(served.context)
    token = "" if served.key.is_used else NO_KEY
    entries: dict[str, JsonValue] = {
        "env": {**variables, "ANTHROPIC_AUTH_TOKEN": token, "ANTHROPIC_API_KEY": ""}
    }
    if served.key.is_used:
        entries["apiKeyHelper"] = served.key.make_command()
    named = environment.get("CLAUDE_CONFIG_DIR")
    folder = Path(named).expanduser() if named else _find_home(environment) / ".claude"
    return Setup(
        variables=variables,
        key_variables=("ANTHROPIC_AUTH_TOKEN",),
        cleared=("ANTHROPIC_API_KEY",),
        command=("claude",),
        files=(ConfigFile(folder / "settings.json", "json", entries),),
        written_command=("claude",),
        trust=_trust(served, "NODE_EXTRA_CA_CERTS"),
        notes=("with that, every `claude` of this user asks this server",),
    )


def _set_up_codex(served: ServedModel, environment: Environment) -> Setup:
    """Add a separate profile, so that the user's configuration stays as it is."""
    provider: dict[str, JsonValue] = {
        "name": "Slipstream",
        "base_url": served.api_url,
        "wire_api": "responses",
        "requires_openai_auth": False,
    }
    if served.key.is_used:
        provider["env_key"] = KEY_VARIABLE
    settings: dict[str, JsonValue] = {
        "model": served.name,
        "model_provider": PROVIDER,
        "web_search": "disabled",  # a tool of OpenAI's own servers
    }
    if served.context is not None:
        settings["model_context_window"] = served.context
    words = [word for key, value in settings.items() for word in ("-c", _assign(key, value))]
    for key, value in provider.items():
        words += ["-c", _assign(f"model_providers.{PROVIDER}.{key}", value)]
    named = environment.get("CODEX_HOME")
    folder = Path(named).expanduser() if named else _find_home(environment) / ".codex"
    entries: dict[str, JsonValue] = {**settings, "model_providers": {PROVIDER: provider}}
    keys = (KEY_VARIABLE,) if served.key.is_used else ()
    return Setup(
        key_variables=keys,
        command=("codex", *words),
        files=(ConfigFile(folder / f"{PROVIDER}.config.toml", "toml", entries),),
        written_command=("codex", "--profile", PROVIDER),
        written_key_variables=keys,
        trust=_trust(served, "SSL_CERT_FILE"),
    )


def _assign(key: str, value: JsonValue) -> str:
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def _set_up_opencode(served: ServedModel, environment: Environment) -> Setup:
    key = served.key
    reference = f"{{file:{key.file.absolute()}}}" if key.file else f"{{env:{KEY_VARIABLE}}}"
    model: dict[str, JsonValue] = {"name": served.name, "tool_call": True}
    if served.context is not None:
        model["limit"] = {"context": served.context, "output": served.answer_tokens}
    provider: dict[str, JsonValue] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Slipstream",
        "options": {"baseURL": served.api_url, "apiKey": reference if key.is_used else NO_KEY},
        "models": {served.name: model},
    }
    entries: dict[str, JsonValue] = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {PROVIDER: provider},
    }
    keys = (KEY_VARIABLE,) if key.is_used and not key.file else ()
    command = ("opencode", "--model", f"{PROVIDER}/{served.name}")
    return Setup(
        variables={"OPENCODE_CONFIG_CONTENT": json.dumps(entries)},
        key_variables=keys,
        command=command,
        files=(
            ConfigFile(_find_config(environment) / "opencode" / "opencode.json", "json", entries),
        ),
        written_command=command,
        written_key_variables=keys,
        trust=_trust(served, "NODE_EXTRA_CA_CERTS"),
    )


def _set_up_openwebui(served: ServedModel, _: Environment) -> Setup:
    return Setup(
        variables={
            "OPENAI_API_BASE_URL": served.api_url,
            "ENABLE_OPENAI_API": "true",
            "ENABLE_OLLAMA_API": "false",
        },
        key_variables=("OPENAI_API_KEY",),
        command=("open-webui", "serve", "--host", "127.0.0.1", "--port", "8080"),
        trust=_trust(served, "SSL_CERT_FILE"),
        notes=(
            "Open WebUI reads these at its first start only; later: Admin Panel, Settings, "
            f"Connections, {served.api_url}",
        ),
    )


def _set_up_aider(served: ServedModel, environment: Environment) -> Setup:
    model = f"openai/{served.name}"
    home = _find_home(environment)
    entries: dict[str, JsonValue] = {"model": model, "openai-api-base": served.api_url}
    if not served.key.is_used:
        entries["openai-api-key"] = NO_KEY
    files = [ConfigFile(home / ".aider.conf.yml", "yaml", entries)]
    if served.context is not None:
        limits: dict[str, Any] = {
            "max_input_tokens": served.context,
            "max_output_tokens": served.answer_tokens,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        files.append(ConfigFile(home / ".aider.model.metadata.json", "json", {model: limits}))
    return Setup(
        variables={"OPENAI_API_BASE": served.api_url},
        key_variables=("OPENAI_API_KEY",),
        command=("aider", "--model", model),
        files=tuple(files),
        written_command=("aider",),
        written_key_variables=("OPENAI_API_KEY",) if served.key.is_used else (),
        trust=_trust(served, "SSL_CERT_FILE"),
    )


def _set_up_llm(served: ServedModel, environment: Environment) -> Setup:
    named = environment.get("LLM_USER_PATH")
    folder = Path(named) if named else _find_config(environment) / "io.datasette.llm"
    entries: dict[str, JsonValue] = {
        "model_id": PROVIDER,
        "model_name": served.name,
        "api_base": served.api_url,
        "supports_tools": True,
    }
    if served.key.is_used:
        entries["api_key_name"] = PROVIDER
    file = ConfigFile(folder / "extra-openai-models.yaml", "yaml", entries, list_key="model_id")
    return Setup(
        files=(file,),
        written_command=("llm", "-m", PROVIDER),
        trust=_trust(served, "SSL_CERT_FILE"),
        notes=(f"the key: llm keys set {PROVIDER}",) if served.key.is_used else (),
    )


def _set_up_openai_python(served: ServedModel, _: Environment) -> Setup:
    return Setup(
        variables={"OPENAI_BASE_URL": served.api_url},
        key_variables=("OPENAI_API_KEY",),
        trust=_trust(served, "SSL_CERT_FILE"),
        notes=(f"then: openai.OpenAI(), with model={served.name!r}",),
    )


def _set_up_anthropic_python(served: ServedModel, _: Environment) -> Setup:
    return Setup(
        variables={"ANTHROPIC_BASE_URL": served.url},
        key_variables=("ANTHROPIC_API_KEY",),
        cleared=("ANTHROPIC_AUTH_TOKEN",),
        trust=_trust(served, "SSL_CERT_FILE"),
        notes=(f"then: anthropic.Anthropic(), with model={served.name!r}",),
    )


CLIENTS = {
    client.name: client
    for client in (
        Client(
            name="claude",
            title="Claude Code",
            api=Messages(),
            routes=("POST /v1/messages", "POST /v1/messages/count_tokens"),
            set_up=_set_up_claude,
            install="npm install -g @anthropic-ai/claude-code",
            least_context=21_000,
            calls_tools=True,
            counts_tokens=True,
            wants_plain_name=True,
        ),
        Client(
            name="codex",
            title="Codex",
            api=Responses(),
            routes=("POST /v1/responses",),
            set_up=_set_up_codex,
            install="npm install -g @openai/codex",
            least_context=10_000,
            calls_tools=True,
        ),
        Client(
            name="opencode",
            title="OpenCode",
            api=ChatCompletions(),
            routes=(CHAT,),
            set_up=_set_up_opencode,
            install="npm install -g opencode-ai",
            least_context=8_000,
            calls_tools=True,
        ),
        Client(
            name="openwebui",
            title="Open WebUI",
            api=ChatCompletions(),
            routes=(CHAT, MODELS),
            set_up=_set_up_openwebui,
            install="pip install open-webui",
        ),
        Client(
            name="aider",
            title="aider",
            api=ChatCompletions(),
            routes=(CHAT,),
            set_up=_set_up_aider,
            install="pip install aider-chat",
        ),
        Client(
            name="llm",
            title="llm",
            api=ChatCompletions(),
            routes=(CHAT,),
            set_up=_set_up_llm,
            install="pip install llm",
        ),
        Client(
            name="openai-python",
            title="OpenAI's Python client",
            api=ChatCompletions(),
            routes=(CHAT, "POST /v1/responses"),
            set_up=_set_up_openai_python,
            install="pip install openai",
        ),
        Client(
            name="anthropic-python",
            title="Anthropic's Python client",
            api=Messages(),
            routes=("POST /v1/messages",),
            set_up=_set_up_anthropic_python,
            install="pip install anthropic",
            key_header="x-api-key",
        ),
    )
}
