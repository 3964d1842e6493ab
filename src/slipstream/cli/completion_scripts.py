"""Completion scripts, one renderer per shell, from the same description of the verbs."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """A flag; `kind` names a list or `files` where its value completes."""

    flag: str
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    kind: str | None


@dataclass(frozen=True, slots=True)
class VerbWords:
    """A verb, its flags, and what its positional arguments can be."""

    name: str
    summary: str
    options: tuple[Option, ...]
    choices: tuple[str, ...]
    kinds: tuple[str, ...]


_BASH = """\
# bash completion for slipstream. To have it in every shell:
#   slipstream completion bash > ~/.local/share/bash-completion/completions/slipstream
_slipstream_list() {{
    [ "$1" = files ] || slipstream completion --list "$1" 2>/dev/null
}}
_slipstream() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local verb=${{COMP_WORDS[1]}} words= kinds= kind
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words={verbs}
    else
        case "$verb $before" in
{values}
            *) case "$verb" in
{arguments}
            esac ;;
        esac
    fi
    for kind in $kinds; do words="$words $(_slipstream_list "$kind")"; done
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    case " $kinds " in
        *" files "*|*" targets "*|*" machines "*) mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY \\
            < <(compgen -f -- "$word") ;;
    esac
}}
complete -o filenames -F _slipstream slipstream"""


def render_bash(verbs: Sequence[VerbWords]) -> str:
    """Return the script for bash."""
    values, arguments = list[str](), list[str]()
    for verb in verbs:
        for option in verb.options:
            if option.takes_value:
                words, kind = shlex.quote(" ".join(option.choices)), option.kind or ""
                pattern = shlex.quote(f"{verb.name} {option.flag}")
                values.append(f"            {pattern}) words={words} kinds={shlex.quote(kind)} ;;")
        flags = [option.flag for option in verb.options]
        words = shlex.quote(" ".join((*verb.choices, *flags)))
        kinds = shlex.quote(" ".join(verb.kinds))
        arguments.append(f"                {verb.name}) words={words} kinds={kinds} ;;")
    names = [*(verb.name for verb in verbs), "--help", "--version"]
    return _BASH.format(
        verbs=shlex.quote(" ".join(names)),
        values="\n".join(values),
        arguments="\n".join(arguments),
    )


_ZSH = """\
#compdef slipstream
# zsh completion for slipstream. To have it in every shell, in a folder of $fpath:
#   slipstream completion zsh > ~/.zfunc/_slipstream
_slipstream_list() {{
    local -a names
    names=(${{(f)"$(slipstream completion --list $1 2>/dev/null)"}})
    compadd -a names
    [[ $1 == (targets|machines) ]] && _files
}}
_slipstream() {{
    local -a verbs
    verbs=(
{verbs}
    )
    if (( CURRENT == 2 )); then
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    (( CURRENT-- ))
    case $verb in
{cases}
    esac
}}
compdef _slipstream slipstream"""


def render_zsh(verbs: Sequence[VerbWords]) -> str:
    """Return the script for zsh."""
    cases = list[str]()
    for verb in verbs:
        specs = [_describe_zsh(option) for option in verb.options]
        specs += [f"*:argument:{_find_zsh(verb.choices, kind)}" for kind in verb.kinds[:1]]
        if not verb.kinds:
            specs.append(f"*:argument:{_find_zsh(verb.choices, None)}")
        joined = " \\\n            ".join(map(shlex.quote, specs))
        cases.append(f"        {verb.name})\n            _arguments \\\n            {joined} ;;")
    names = [shlex.quote(f"{verb.name}:{verb.summary}") for verb in verbs]
    return _ZSH.format(verbs="\n".join(f"        {name}" for name in names), cases="\n".join(cases))


def _describe_zsh(option: Option) -> str:
    words = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    said = f"{option.flag}[{words}]"
    return f"{said}:value:{_find_zsh(option.choices, option.kind)}" if option.takes_value else said


def _find_zsh(choices: tuple[str, ...], kind: str | None) -> str:
    if choices:
        return f"({' '.join(choices)})"
    if kind is None:
        return " "
    return "_files" if kind == "files" else f" _slipstream_list {kind}"


def render_fish(verbs: Sequence[VerbWords]) -> str:
    """Return the script for fish."""
    lines = [
        "# fish completion for slipstream. To have it in every shell:",
        "#   slipstream completion fish > ~/.config/fish/completions/slipstream.fish",
        "complete -c slipstream -f",
    ]
    for verb in verbs:
        lines.append(
            f"complete -c slipstream -n __fish_use_subcommand -a {verb.name} "
            f"-d {_quote_fish(verb.summary)}"
        )
        here = f'-n "__fish_seen_subcommand_from {verb.name}"'
        for kind in verb.kinds:
            lines.append(f"complete -c slipstream {here} {_find_fish(verb.choices, kind)}")
        if verb.choices and not verb.kinds:
            lines.append(f"complete -c slipstream {here} {_find_fish(verb.choices, None)}")
        for option in verb.options:
            value = f" -r {_find_fish(option.choices, option.kind)}" if option.takes_value else ""
            lines.append(
                f"complete -c slipstream {here} -l {option.flag.removeprefix('--')}{value} "
                f"-d {_quote_fish(option.help)}"
            )
    return "\n".join(lines)


def _find_fish(choices: tuple[str, ...], kind: str | None) -> str:
    if choices:
        return f"-a {_quote_fish(' '.join(choices))}"
    if kind is None:
        return ""
    files = "-F" if kind in ("files", "targets", "machines") else ""
    return (
        files if kind == "files" else f'{files} -a "(slipstream completion --list {kind})"'.strip()
    )


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


RENDERERS: dict[str, Callable[[Sequence[VerbWords]], str]] = {
    "bash": render_bash,
    "zsh": render_zsh,
    "fish": render_fish,
}
