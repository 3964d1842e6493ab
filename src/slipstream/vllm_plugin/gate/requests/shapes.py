"""The shape of a body, checked by vLLM's own types, which end at the first faulty entry of a list.

vLLM 0.32 tries all types that an entry may have and lists every error of every entry: an item of a
response makes 236, and 4,000 faulty ones, in 52 kB, took 20 s of the API server and 5 GB. The same
types with pydantic's `fail_fast` name the first faulty entry in a millisecond.
"""

from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.requests.limits import Document

_LISTS = ("list", "tuple", "set", "frozenset")
# More errors than one entry can have: they are not even listed.
MOST_ERRORS = 1000


class Shapes:
    """The types of the bodies that vLLM's routes take."""

    def __init__(self) -> None:
        self._types: dict[str, SchemaValidator] = {}

    def prepare(self, app: Any, paths: set[str]) -> None:
        """Read the types from vLLM's application, for the paths that are served."""
        for route in getattr(app, "routes", ()):
            # A mounted application, as that of /metrics, has no methods and no body of its own.
            is_known = getattr(route, "path", "") in paths and hasattr(route, "methods")
            if is_known and (body := route.body_field) is not None:
                schema = TypeAdapter(body.field_info.annotation).core_schema
                # A class that is complete would bring its own types, which list every error.
                self._types[route.path] = SchemaValidator(_fail_fast(schema), _use_prebuilt=False)

    def require(self, document: Document, path: str) -> None:
        """Refuse a body that vLLM would refuse; its validators may change the turns."""
        if (known := self._types.get(path)) is None:
            return
        try:
            known.validate_python({**document})
        except ValidationError as fault:
            field, what = _describe(fault)
            raise Refusal(400, what, field=field) from None
        except (
            TypeError,
            LookupError,
            AttributeError,
        ):  # In a validator of vLLM's: it answers 500.
            raise Refusal(400, "the body does not match this API") from None
        except Exception:  # noqa: BLE001 vLLM's own check ends here too, and has its own words.
            return


def _fail_fast(schema: Any) -> Any:
    """Return a schema whose lists end at their first faulty entry."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_fail_fast, schema))
    if not isinstance(schema, dict):
        return schema
    ends = {"fail_fast": True} if schema.get("type") in _LISTS else {}
    return {name: _fail_fast(value) for name, value in schema.items()} | ends


def _describe(fault: ValidationError) -> tuple[str | None, str]:
    """Return the field of the first error and what is wrong with it, or with its first entry."""
    if fault.error_count() > MOST_ERRORS:
        return None, f"the body has {fault.error_count()} values that do not match this API"
    errors = fault.errors(include_url=False, include_context=False, include_input=False)
    places = [one["loc"] for one in errors]
    field = str(places[0][0])[:40] if places[0] else None
    if len(errors) == 1:
        where = ".".join(str(part)[:40] for part in places[0])
        return field, f"{where}: {errors[0]['msg'][:400]}" if where else errors[0]["msg"][:400]
    numbers = [part for place in places for part in place if isinstance(part, int)]
    entry = f"{field}[{numbers[0]}]" if numbers else field
    return field, f"{entry} is not part of this API, or invalid"
