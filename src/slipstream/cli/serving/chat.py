"""`slipstream chat`: a conversation with a served model in the terminal."""

import argparse
import json
import math
import os
import re
import shlex
from contextlib import closing
from pathlib import Path

from slipstream.cli.options import OptionAdder, add_server
from slipstream.cli.screen import Screen
from slipstream.clients.arrival import AnswerPart, ChatAnswer
from slipstream.clients.chat import ChatConversation
from slipstream.clients.connection import ClientKey, ServedModel, find_served
from slipstream.clients.marking import load_tokenizer
from slipstream.errors import ExitCode, InvalidInputError, SlipstreamError
from slipstream.measuring.client.endpoint import KEY_VARIABLE, read_key
from slipstream.reporting.clients.chat import render_figures, render_part
from slipstream.reporting.report import clean
from slipstream.serving.run import find_run, find_runs_root
from slipstream.steering.ledger import LedgerReader

EXAMPLES = """\
# talk to the newest run; accepted draft tokens are green
slipstream chat
# one message per line of a file, with greedy answers as JSON
slipstream chat --temperature 0 --json < questions.txt
"""

COMMANDS = """\
/plain  send the last message again without drafts, to compare; the
        conversation keeps the first answer
/new    start a new conversation
/help   print this
/exit   leave, as Ctrl-D does; Ctrl-C ends an answer
Everything else is sent. An answer ends with its tokens, the tokens per second
after the first, the tokens per step of the target and the time to the first."""
_NAMES = ("/plain", "/new", "/help", "/exit")
# A path, or a slash within a sentence, is a message.
_COMMAND = re.compile(r"/[a-z]+(?: .*)?")


def add_arguments(add: OptionAdder) -> None:
    add_server(add)
    add("--key FILE", f"file with the server's API key (default: the variable {KEY_VARIABLE})")
    add("--max-tokens TOKENS", "maximum tokens per answer (default: what the context leaves)")
    add(
        "--temperature T",
        "sampling temperature, 0 for greedy decoding (default: the model's)",
        _read_temperature,
    )
    add.group("what to type", COMMANDS)
    add.parser.usage = "slipstream chat [URL|RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Answer what is typed, or each line of the input, until that ends."""
    key = ClientKey(None, options.key, read_key(options.key, os.environ))
    runs = find_runs_root(os.environ)
    hint = f"slipstream serve {_name_target(runs, options.server)} --detach; slipstream chat"
    served = find_served(runs, options.server, key, hint=hint)
    if served.key.required and not key.secret:
        raise InvalidInputError(
            f"the server needs a key, and there is none in {KEY_VARIABLE} or --key FILE",
            hint="slipstream keys new --name chat > chat.key; slipstream chat --key chat.key",
        )
    chosen = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    begun = served.run
    with closing(LedgerReader()) as ledger:
        conversation = ChatConversation(
            find=lambda: find_served(runs, begun.id, key, hint=hint) if begun else served,
            runs=runs,
            ledger=ledger,
            settings={name: value for name, value in chosen.items() if value is not None},
        )
        _Session(screen, conversation, served).run()
    return ExitCode.DONE


def _name_target(runs: Path, name: str | None) -> str:
    """Return what `serve` takes for a run that is over, or for a model."""
    if name is None:
        return "TARGET"
    run = find_run(name, runs)
    return shlex.quote(str(run.path) if run else name)


def _read_temperature(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of zero or more")
    return number


class _Session:
    """The lines that are typed or piped, and what is shown of each answer.

    Where somebody types, a failed question and Ctrl-C end an answer; a pipe ends at either.
    """

    def __init__(self, screen: Screen, conversation: ChatConversation, served: ServedModel) -> None:
        self._screen, self._conversation = screen, conversation
        self._typed = screen.is_typed
        self._colour = screen.colour and screen.output.isatty()
        self._waits, self._ends_line = False, True
        self._server = served.run.id if served.run else "TARGET"
        conversation.tokenizer, unmarked = load_tokenizer(served)
        if self._typed:
            screen.show_progress(f"{clean(served.name)} at {clean(served.url)}; /help for commands")
            marks = f"not marked: {unmarked}" if unmarked else "green"
            if self._colour:
                screen.show_progress(f"accepted draft tokens are {marks}")

    def run(self) -> None:
        while True:
            try:
                line = self._screen.ask("> ")
                if line.strip() == "/exit":
                    return
                self._answer(line)
            except EOFError:
                if self._typed:
                    self._screen.show_progress("")
                return
            except KeyboardInterrupt:
                self._end()
                if not self._typed:
                    raise
                self._screen.show_progress("\nCtrl-D or /exit leaves")
            except SlipstreamError as fault:
                self._end()
                if not self._typed or self._screen.json:
                    raise
                self._screen.warn(fault)

    def _answer(self, line: str) -> None:
        """Do what a line says: a command, or a message to send."""
        word = line.strip()
        if word == "/new":
            self._conversation.begin_anew()
            self._screen.show_progress("new conversation")
        elif word == "/help":
            self._screen.show_progress(COMMANDS)
        elif word == "/plain" and self._conversation.last is None:
            raise InvalidInputError("there is no message to repeat", hint="type a message first")
        elif word == "/plain":
            self._begin()
            self._finish(self._conversation.ask_plainly(self._show))
        elif _COMMAND.fullmatch(word):
            name = word.partition(" ")[0]
            raise InvalidInputError(f"no command {name}", hint=f"one of {', '.join(_NAMES)}")
        elif word:
            self._begin()
            self._finish(self._conversation.ask(line, self._show))

    def _begin(self) -> None:
        self._waits, self._ends_line = True, True
        self._screen.begin("waiting for the first token")

    def _show(self, part: AnswerPart) -> None:
        if self._screen.json:
            self._screen.show_data(text="", document=json.dumps(part.model_dump()))
            return
        waited, self._waits = self._waits, False
        if not part.text:
            if waited:
                self._screen.begin("the model thinks, which is not shown")
            return
        self._screen.rest()
        self._screen.write(render_part(part, colour=self._colour))
        self._ends_line = part.text.endswith("\n")

    def _end(self) -> None:
        """End the line of an answer, whatever became of it."""
        self._screen.rest()
        if not self._ends_line:
            self._screen.write("\n")
        self._ends_line = True

    def _finish(self, answer: ChatAnswer) -> None:
        self._end()
        if answer.interrupted and not self._typed:
            raise KeyboardInterrupt
        if self._screen.json:
            self._screen.show_data(text="", document=json.dumps(answer.model_dump()))
        figures = render_figures(answer, server=self._server, colour=self._colour)
        self._screen.show_progress(f"{figures}\n")
