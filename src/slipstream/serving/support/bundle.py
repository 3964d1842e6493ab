"""`Bundle`: one archive for a bug report, without keys, prompts or names.

Nothing is copied. Each file is written anew from fields that are known to hold figures and states,
and every text goes through a `Redactor`. What a run asked and answered, who asked, its keys, its
gate's rules and its recordings have no file here.
"""

import io
import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from slipstream.errors import InvalidInputError, SlipstreamError
from slipstream.hardware import Host
from slipstream.planning import LaunchPlan
from slipstream.records import Record
from slipstream.serving.access.keys import find_key_file, read_keys
from slipstream.serving.following import read_access_line
from slipstream.serving.run import Event, Run, RunFolder
from slipstream.serving.support.examination import Examination, diagnose_run
from slipstream.serving.support.redaction import (
    Redactor,
    list_skeleton,
    make_redactor,
    show_model,
    show_value,
)
from slipstream.steering.ledger import read_ledger

READ_BYTES = 2 << 20
MOST_RUNS = 3
_MOMENT = (1980, 1, 1, 0, 0, 0)
_SUMMED = (
    *("prompt_tokens", "tokens", "steps", "drafts", "drafted"),
    *("copies", "copied", "copied_accepted"),
)
_VARIABLES = (
    "VLLM_",
    "SLIPSTREAM_",
    "HF_",
    "CUDA_",
    "NCCL_",
    "GLOO_",
    "OMP_",
    "TORCH_",
    "PYTORCH_",
)


class BundledFile(Record):
    name: str
    size_bytes: int
    holds: str


class BundleList(Record):
    """What an archive holds; `file` is None if it was only shown."""

    schema_version: Literal[1] = 1
    file: str | None
    files: tuple[BundledFile, ...]


class Bundle:
    """The files of an archive, in memory until somebody has seen the list."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.contents: dict[str, str] = {}
        self._holds: dict[str, str] = {}

    def add(self, name: str, holds: str, content: object) -> None:
        lines = isinstance(content, list) and all(isinstance(one, str) for one in content)
        text = "\n".join(content) if lines else json.dumps(content, indent=2)  # type: ignore[arg-type]
        self.contents[name] = self.redactor.clean_known(text) + "\n"
        self._holds[name] = holds

    def list_files(self, file: Path | None) -> BundleList:
        return BundleList(
            file=None if file is None else str(file),
            files=tuple(
                BundledFile(name=name, size_bytes=len(text.encode()), holds=self._holds[name])
                for name, text in self.contents.items()
            ),
        )

    def write(self, path: Path) -> None:
        """Write the archive, readable by its owner only; a file that is there is not replaced."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, text in self.contents.items():
                packed.writestr(zipfile.ZipInfo(name, _MOMENT), text)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as fault:
            raise InvalidInputError(
                f"cannot write {path}: {fault.strerror}", hint="name a file that does not exist yet"
            ) from fault
        with os.fdopen(descriptor, "wb") as file:
            file.write(archive.getvalue())


def make_bundle(
    host: Host,
    examination: Examination,
    runs: tuple[tuple[RunFolder, Run], ...],
    versions: Mapping[str, str],
    environment: Mapping[str, str],
) -> Bundle:
    """Collect what a bug report needs of this machine and these runs."""
    bundle = Bundle(_know_names(runs, environment))
    bundle.add("versions.json", "versions of Slipstream and the engine's parts", dict(versions))
    bundle.add(
        "machine.json", "the machine as `probe` describes it", clean_record(host, bundle.redactor)
    )
    bundle.add("doctor.json", "what `doctor` found", _list_checks(examination, bundle.redactor))
    bundle.add("environment.json", "variables of the engine", _list_variables(environment))
    for number, (folder, run) in enumerate(runs, start=1):
        _add_run(bundle, f"run-{number}", folder, run)
    return bundle


def _know_names(
    runs: tuple[tuple[RunFolder, Run], ...], environment: Mapping[str, str]
) -> Redactor:
    """Know how runs, private models and the owners of keys are called."""
    names, files = dict[str, str](), {find_key_file(environment)}
    for number, (_, run) in enumerate(runs, start=1):
        for model in (run.plan.target, run.plan.drafter):
            if model is not None and show_model(model) == "[model]":
                names |= {model: "[model]", Path(model).name: "[model]"}
        names[run.id] = f"run-{number}"
        if run.terms.keys_file is not None:
            files.add(run.terms.keys_file)
    keys = set[str]()
    for file in files:
        with suppress(SlipstreamError, OSError):
            keys |= {part for key in read_keys(file) for part in (key.id, key.name, key.sha256)}
    return make_redactor(environment, names, keys)


def _add_run(bundle: Bundle, name: str, folder: RunFolder, run: Run) -> None:
    add, redactor = bundle.add, bundle.redactor
    add(f"{name}/run.json", "state, settings and figures of a run", _describe_run(run))
    with suppress(SlipstreamError):
        events = [_describe_event(event, redactor) for event in folder.read_events()]
        add(f"{name}/events.json", "the run's events, without quoted text", events)
    with suppress(SlipstreamError):
        diagnosis = diagnose_run(folder)
        found = [{"signature": one.signature, "cause": one.cause} for one in diagnosis.findings]
        flight = diagnosis.flight.model_dump(mode="json") if diagnosis.flight else None
        document = {"findings": found, "last_steps": flight}
        add(f"{name}/diagnosis.json", "known failures in its log, its last steps", document)
    for log in sorted(folder.path.glob("engine*.log")):
        if (text := _read_text(log)) is not None:
            is_whole = len(text) < READ_BYTES and not log.with_name(f"{log.name}.1").exists()
            lines = list_skeleton(text, redactor, is_whole=is_whole)
            add(f"{name}/{log.name}", "its start, then only the source lines that logged", lines)
    if (text := _read_text(folder.supervisor_log)) is not None:
        lines = list_skeleton(text, redactor, is_whole=False)
        add(f"{name}/supervisor.log", "tracebacks of the supervisor, without messages", lines)
    document = {"requests": _sum_ledger(folder), "answers": _count_answers(folder)}
    add(f"{name}/requests.json", "totals of requests, tokens and status codes", document)


def _describe_run(run: Run) -> dict[str, Any]:
    plan, terms = run.plan, run.terms
    figures = {"began_at", "state", "restarts", "exit_code", "rungs", "phase_seconds"}
    return {
        **run.model_dump(mode="json", include=figures | {"measurements", "versions"}),
        "plan": describe_plan(plan),
        "gated": terms.gated,
        "needs_key": terms.needs_key,
        "steered": terms.steered,
        "detached": terms.detached,
        "recording": terms.recording is not None,
        "drifts": [{"family": one.family, "decay": one.decay} for one in run.drifts],
        "swaps": len(run.drafters),
    }


def describe_plan(plan: LaunchPlan) -> dict[str, Any]:
    """Return a plan for strangers: published names and figures, no text of the user's."""
    return {
        "target": show_model(plan.target),
        "drafter": show_model(plan.drafter),
        "recipe": plan.recipe if plan.recipe and show_model(plan.target) != "[model]" else None,
        "settings": [
            {"flag": one.flag, "value": show_value(one.flag, one.value), "source": one.source}
            for one in (*plan.decisions, *plan.variables)
        ],
        "patches": list(plan.patches),
        "memory": plan.memory.model_dump(
            mode="json", exclude={"items": {"__all__": {"because"}}, "unknown": True}
        ),
        "warnings": [fault.code for fault in plan.warnings],
        "refusals": [fault.code for fault in plan.refusals],
    }


def _describe_event(event: Event, redactor: Redactor) -> dict[str, Any]:
    """Keep an event's message up to where it could begin to quote something."""
    message = redactor.clean(event.message.partition(": ")[0].partition("; ")[0])
    return {**event.model_dump(mode="json"), "message": message}


def _list_checks(examination: Examination, redactor: Redactor) -> list[dict[str, str]]:
    """Keep verdicts and messages; details quote logs and name files."""
    return [
        {
            "subject": check.subject,
            "verdict": check.verdict,
            "message": redactor.clean(check.message.partition(": ")[0]),
        }
        for check in examination.checks
    ]


def clean_record(record: Record, redactor: Redactor) -> Any:
    """Return a record's document with every string redacted."""
    return _clean_strings(record.model_dump(mode="json"), redactor)


def _clean_strings(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return redactor.clean(value)
    if isinstance(value, list):
        return [_clean_strings(one, redactor) for one in value]
    if isinstance(value, dict):
        return {key: _clean_strings(one, redactor) for key, one in value.items()}
    return value


def _list_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    names = sorted(name for name in environment if name.startswith(_VARIABLES))
    return {name: show_value("", environment[name]) for name in names if name.isidentifier()}


def _sum_ledger(folder: RunFolder) -> dict[str, int]:
    totals = Counter[str]()
    with suppress(OSError):
        for line in read_ledger(folder.list_ledgers()):
            totals.update(requests=1, **{line.ended: 1})
            for field in _SUMMED:
                totals[field] += getattr(line, field)
            totals["accepted"] += sum(line.accepted)
    return dict(totals)


def _count_answers(folder: RunFolder) -> dict[str, int]:
    statuses = Counter[str]()
    for line in _list_lines(folder):
        with suppress(SlipstreamError):
            if access := read_access_line(line):
                statuses[str(access.status)] += 1
    return dict(sorted(statuses.items()))


def _list_lines(folder: RunFolder) -> Iterator[bytes]:
    for file in (*folder.list_older_access_logs(), folder.access_log):
        if (text := _read_text(file)) is not None:
            yield from text.encode().splitlines()


def _read_text(path: Path) -> str | None:
    """Read the end of a file of the run's own; a link is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - READ_BYTES))
        return file.read(READ_BYTES).decode(errors="replace")
