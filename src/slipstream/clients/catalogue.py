"""The known clients, each with its variables, files and command.

Settings are those of the versions in docs/agents.md, where each was run against an engine.
"""

import json
from pathlib import Path
from typing import Any

from slipstream.clients.apis import COUNT_PATH, ChatCompletions, Messages, Responses
from slipstream.clients.config_files import make_file
from slipstream.clients.connection import NO_KEY, Client, Environment, ServedModel, Setup
from slipstream.measuring.client.endpoint import KEY_VARIABLE

# Under which clients list the server among others.
PROVIDER = "slipstream"
NODE_TRUST = "NODE_EXTRA_CA_CERTS"


def _find_folder(environment: Environment, variable: str, default: str) -> Path:
    """Return the folder that a variable names, or else the default below the user's home."""
    named = environment.get(variable)
    home = Path(environment.get("HOME") or Path.home())
    return Path(named).expanduser() if named else home / default


def _known(**entries: Any) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value is not None}


class Claude(Client):
    """Set one model for every role; settings override the shell, so other keys are cleared."""

    name, title, api = "claude", "Claude Code", Messages()
    install = "npm install -g @anthropic-ai/claude-code"
    agent_context = 21_000
    more_routes = (f"POST {COUNT_PATH}",)
    wants_plain_name = runs_key_command = True
    trust_variable = NODE_TRUST

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        roles = ("FABLE", "OPUS", "SONNET", "HAIKU")
        limits = _known(
            CLAUDE_CODE_MAX_OUTPUT_TOKENS=served.answer_tokens,
            CLAUDE_CODE_MAX_CONTEXT_TOKENS=served.context,
            CLAUDE_CODE_AUTO_COMPACT_WINDOW=served.context,
        )
        variables = {
            "ANTHROPIC_BASE_URL": served.url,
            "ANTHROPIC_MODEL": served.name,
            **{f"ANTHROPIC_DEFAULT_{role}_MODEL": served.name for role in roles},
            "ANTHROPIC_SMALL_FAST_MODEL": served.name,
            "CLAUDE_CODE_SUBAGENT_MODEL": served.name,
            # A line that changes with every request would come before all that could be cached.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **{name: str(limit) for name, limit in limits.items()},
        }
        used = served.key.is_used
        keys = {"ANTHROPIC_AUTH_TOKEN": "" if used else NO_KEY, "ANTHROPIC_API_KEY": ""}
        helper = served.key.make_command() if used else None
        file = _find_folder(environment, "CLAUDE_CONFIG_DIR", ".claude") / "settings.json"
        return Setup(
            variables=variables,
            key_variables=("ANTHROPIC_AUTH_TOKEN",),
            cleared=("ANTHROPIC_API_KEY",),
            command=("claude",),
            files=(
                make_file(file, "json", _known(env={**variables, **keys}, apiKeyHelper=helper)),
            ),
            written_command=("claude",),
            notes=("with that, every `claude` of this user uses this server",),
        )


class Codex(Client):
    """Add a separate profile, so that the user's configuration stays as it is."""

    name, title, api = "codex", "Codex", Responses()
    install = "npm install -g @openai/codex"
    agent_context = 10_000

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        keys = (KEY_VARIABLE,) if served.key.is_used else ()
        provider = _known(
            name="Slipstream",
            base_url=served.api_url,
            wire_api="responses",
            requires_openai_auth=False,
            env_key=KEY_VARIABLE if keys else None,
        )
        settings = _known(
            model=served.name,
            model_provider=PROVIDER,
            web_search="disabled",  # a tool of OpenAI's own servers
            model_context_window=served.context,
        )
        flat = settings | {
            f"model_providers.{PROVIDER}.{key}": one for key, one in provider.items()
        }
        words = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flat.items()]
        file = _find_folder(environment, "CODEX_HOME", ".codex") / f"{PROVIDER}.config.toml"
        entries = {**settings, "model_providers": {PROVIDER: provider}}
        return Setup(
            key_variables=keys,
            command=("codex", *(part for word in words for part in ("-c", word))),
            files=(make_file(file, "toml", entries),),
            written_command=("codex", "--profile", PROVIDER),
        )


class OpenCode(Client):
    name, title, api = "opencode", "OpenCode", ChatCompletions()
    install = "npm install -g opencode-ai"
    agent_context = 8_000
    trust_variable = NODE_TRUST

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        key, context = served.key, served.context
        reference = f"{{file:{key.file.absolute()}}}" if key.file else f"{{env:{KEY_VARIABLE}}}"
        limit = {"context": context, "output": served.answer_tokens} if context else None
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Slipstream",
            "options": {"baseURL": served.api_url, "apiKey": reference if key.is_used else NO_KEY},
            "models": {served.name: _known(name=served.name, tool_call=True, limit=limit)},
        }
        entries = {"$schema": "https://opencode.ai/config.json", "provider": {PROVIDER: provider}}
        command = ("opencode", "--model", f"{PROVIDER}/{served.name}")
        folder = _find_folder(environment, "XDG_CONFIG_HOME", ".config") / "opencode"
        return Setup(
            variables={"OPENCODE_CONFIG_CONTENT": json.dumps(entries)},
            key_variables=(KEY_VARIABLE,) if key.is_used and not key.file else (),
            command=command,
            files=(make_file(folder / "opencode.json", "json", entries),),
            written_command=command,
        )


class OpenWebUi(Client):
    name, title, api = "openwebui", "Open WebUI", ChatCompletions()
    install = "pip install open-webui"
    more_routes = ("GET /v1/models",)

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        return Setup(
            variables={
                "OPENAI_API_BASE_URL": served.api_url,
                "ENABLE_OPENAI_API": "true",
                "ENABLE_OLLAMA_API": "false",
            },
            key_variables=("OPENAI_API_KEY",),
            command=("open-webui", "serve", "--host", "127.0.0.1", "--port", "8080"),
            notes=(
                "Open WebUI reads these at its first start only; later: Admin Panel, Settings, "
                f"Connections, {served.api_url}",
            ),
        )


class Aider(Client):
    name, title, api = "aider", "aider", ChatCompletions()
    install = "pip install aider-chat"

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        model, home = f"openai/{served.name}", _find_folder(environment, "HOME", "")
        entries = {"model": model, "openai-api-base": served.api_url}
        if not served.key.is_used:
            entries["openai-api-key"] = NO_KEY
        limits = {
            "max_input_tokens": served.context,
            "max_output_tokens": served.answer_tokens,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        file = make_file(home / ".aider.conf.yml", "yaml", entries)
        metadata = make_file(home / ".aider.model.metadata.json", "json", {model: limits})
        return Setup(
            variables={"OPENAI_API_BASE": served.api_url},
            key_variables=("OPENAI_API_KEY",),
            command=("aider", "--model", model),
            files=(file,) if served.context is None else (file, metadata),
            written_command=("aider",),
        )


class Llm(Client):
    name, title, api = "llm", "llm", ChatCompletions()
    install = "pip install llm"

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        config = _find_folder(environment, "XDG_CONFIG_HOME", ".config")
        folder = _find_folder(environment, "LLM_USER_PATH", str(config / "io.datasette.llm"))
        entry = _known(
            model_id=PROVIDER,
            model_name=served.name,
            api_base=served.api_url,
            supports_tools=True,
            api_key_name=PROVIDER if served.key.is_used else None,
        )
        return Setup(
            files=(make_file(folder / "extra-openai-models.yaml", "yaml", entry, "model_id"),),
            written_command=("llm", "-m", PROVIDER),
            notes=(f"the key: llm keys set {PROVIDER}",) if served.key.is_used else (),
        )


class OpenAiPython(Client):
    name, title, api = "openai-python", "OpenAI's Python client", ChatCompletions()
    install = "pip install openai"
    more_routes = ("POST /v1/responses",)

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        return Setup(
            variables={"OPENAI_BASE_URL": served.api_url},
            key_variables=("OPENAI_API_KEY",),
            notes=(f"then: openai.OpenAI(), with model={served.name!r}",),
        )


class AnthropicPython(Client):
    name, title, api = "anthropic-python", "Anthropic's Python client", Messages()
    install = "pip install anthropic"
    key_header = "x-api-key"

    def set_up(self, served: ServedModel, environment: Environment) -> Setup:
        return Setup(
            variables={"ANTHROPIC_BASE_URL": served.url},
            key_variables=("ANTHROPIC_API_KEY",),
            cleared=("ANTHROPIC_AUTH_TOKEN",),
            notes=(f"then: anthropic.Anthropic(), with model={served.name!r}",),
        )


_KINDS = (Claude, Codex, OpenCode, OpenWebUi, Aider, Llm, OpenAiPython, AnthropicPython)
CLIENTS: dict[str, Client] = {kind.name: kind() for kind in _KINDS}
