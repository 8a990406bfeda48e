"""JSON files that people write: decoding with errors that name the field, and their JSON Schema."""

from collections.abc import Iterator
from inspect import cleandoc
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin

import msgspec

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PATH_MARK: Final = " - at `$"
_UNNAMED_ITEM: Final = "[...]"

T = TypeVar("T")


class JsonDocumentError(ValueError):
    """A document does not have the form that its type requires.

    ``path`` names the field, for example ``nodes[2].tokens[0]``. It is empty for the document as a
    whole.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class _FieldError(NamedTuple):
    path: str
    message: str


def decode_document(raw: bytes, type_: type[T]) -> T:
    """Decode JSON as ``type_``, a msgspec Struct. Raises JsonDocumentError."""
    try:
        try:
            return msgspec.json.decode(raw, type=type_)
        except msgspec.ValidationError as error:
            # This second decoding fails for bytes that the first one did not reach.
            found = _first_error(msgspec.json.decode(raw), type_) or _parsed(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JsonDocumentError("", f"the file is not valid JSON: {error}") from None
    raise JsonDocumentError(found.path.removeprefix("."), found.message)


def json_schema(document: type, **others: type) -> bytes:
    """Return the JSON Schema of ``document``, with those of other types as additional top-level
    members.
    """
    (root, *references), definitions = msgspec.json.schema_components(
        (document, *others.values()), ref_template="#/$defs/{name}"
    )
    members = dict(zip(others, references, strict=True))
    schema = _dedented({"$schema": _DIALECT, **root, **members, "$defs": definitions})
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _parsed(error: msgspec.ValidationError) -> _FieldError:
    message, _, path = str(error).partition(_PATH_MARK)
    return _FieldError(path.rstrip("`"), message)


def _first_error(value: Any, type_: Any) -> _FieldError | None:
    """Return the first error in a decoded value, with the index or key of every item in its path.

    msgspec writes ``[...]`` for an item of a list or object. The parts are therefore converted one
    by one.
    """
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        found = _parsed(error)
    else:
        return None
    if _UNNAMED_ITEM in found.path:
        for place, part, part_type in _parts(value, type_):
            deeper = _first_error(part, part_type)
            if deeper is not None:
                return _FieldError(f"{place}{deeper.path}", deeper.message)
    return found


def _parts(value: Any, type_: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, value and type of each field of a Struct, or of each item of a tuple, list or
    dict.
    """
    if get_origin(type_) is Annotated:
        type_ = get_args(type_)[0]
    origin = get_origin(type_)
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        for field in msgspec.structs.fields(type_):
            if field.encode_name in value:
                yield f".{field.encode_name}", value[field.encode_name], field.type
    elif origin is dict:
        for key, item in value.items():
            yield f".{key}", item, get_args(type_)[1]
    elif origin in {list, tuple}:
        for index, item in enumerate(value):
            yield f"[{index}]", item, get_args(type_)[0]


def _dedented(schema: object) -> object:
    """Remove the indentation of docstrings, which Python keeps before version 3.13."""
    if isinstance(schema, dict):
        return {key: _dedented(value) for key, value in schema.items()}
    if isinstance(schema, list | tuple):
        return [_dedented(value) for value in schema]
    return cleandoc(schema) if isinstance(schema, str) else schema
