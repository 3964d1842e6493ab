"""The hostile requests of the engine's tests, at the gate alone: what must not pass does not."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from slipstream.serving.access.keys import make_key
from slipstream.vllm_plugin.gate.constraints.measuring import ConstraintVerdict
from tests.engine.gate.corpus import CORPUS
from tests.engine.gate.corpus_of_agents import AGENTS_PAST_LIMITS
from tests.engine.gate.corpus_of_schemas import (
    FAULTY_SCHEMAS,
    SCHEMAS_FOR_THE_ENGINE,
    SCHEMAS_PAST_LIMITS,
)
from tests.engine.gate.corpus_of_texts import ODD_TEXTS
from tests.engine.gate.hostile import Hostile
from tests.unit.vllm_plugin.gate.pieces import Engine, Measured, make_gate
from tests.unit.vllm_plugin.gate.test_sockets import send_raw, serve, status_of


def send_all(
    folder: Path, requests: Sequence[Hostile], *found: ConstraintVerdict
) -> tuple[dict[str, int], Engine]:
    """Send requests through a real server; return the status of each, by name."""
    keys = folder / "keys.json"
    key = make_key(keys, "attacker", now=datetime.now(UTC), expires=None).secret
    engine = Engine()
    gate = make_gate(
        folder,
        engine,
        keys_file=keys,
        new_schemas_per_minute=10**6,
        schema_units_per_minute=10**9,
        worker=Measured(*found),
    )
    with serve(gate, http="httptools") as port:
        answers = {one.name: status_of(send_raw(port, one.with_key(key))) for one in requests}
    return answers, engine


def test_the_corpus_is_large_and_its_names_are_apart() -> None:
    assert len(CORPUS) >= 280
    assert len({hostile.name for hostile in CORPUS}) == len(CORPUS)


def test_what_is_past_a_limit_or_no_request_never_reaches_the_engine(tmp_path: Path) -> None:
    """What the worker finds of the schemas is shown with the real one: here none is overlooked."""
    agents = [one for one in AGENTS_PAST_LIMITS if 413 not in one.expected]
    requests = [*SCHEMAS_PAST_LIMITS, *FAULTY_SCHEMAS, *agents, *ODD_TEXTS]
    answers, engine = send_all(tmp_path, requests, ConstraintVerdict("costly", 3000))
    assert {name: status for name, status in answers.items() if status != 400} == {}
    assert engine.scopes == []


def test_what_the_engine_has_to_cope_with_passes(tmp_path: Path) -> None:
    answers, engine = send_all(tmp_path, SCHEMAS_FOR_THE_ENGINE)
    assert [name for name, status in answers.items() if status != 200] == []
    assert len(engine.scopes) == len(answers)
