"""Building blocks of the models: key types, `setting` with its documentation, and the base class of sections."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from ister.config import validators

DATA_DIR = Path("danube-data")
"""The default data directory."""

TEXT_MAX = 64 * 1024
"""The longest value, in characters, after substitution of variables."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Secret = Annotated[SecretStr, Field(min_length=1, max_length=TEXT_MAX)]
FilePath = Annotated[Path, BeforeValidator(validators.path_text)]
Address = Annotated[Text, AfterValidator(validators.endpoint)]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]
OPTION_NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
OptionName = Annotated[str, StringConstraints(pattern=rf"^{OPTION_NAME}$")]


class Clash(NamedTuple):
    """Two keys that contradict each other, or one that requires the other; dotted paths."""

    key: str
    other: str
    reason: str


class Note(NamedTuple):
    """The documentation of a key beside its type and bounds."""

    allowed: str
    example: str
    backends: tuple[str, ...]


def setting(
    what: str, *, default: object, allowed: str = "", example: str = "", backends: tuple[str, ...] = (), **bounds: Any
) -> Any:
    """Define one key; `allowed` only where type and bounds do not imply it, `example` where there is no default."""
    extra: Any = {"note": Note(allowed, example, backends)}
    return Field(default, description=what, json_schema_extra=extra, **bounds)


def note_of(field: FieldInfo) -> Note:
    """Return the note of a key that `setting` defined."""
    extra: Any = field.json_schema_extra
    note: Note = extra["note"]
    return note


def refuse(clashes: Iterator[Clash]) -> None:
    """Raise a validation error with all contradictions, if there are any."""
    found = list(clashes)
    if found:
        # The loader reports all; code that builds a section by hand sees the first.
        raise PydanticCustomError("clash", "{key} {reason}", {**found[0]._asdict(), "clashes": found})


class Section(BaseModel):
    """A section of the file: immutable, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        refuse(self._clashes())
        return self

    def _clashes(self) -> Iterator[Clash]:
        """Yield the contradictions between keys; most sections have none."""
        return iter(())

    def _given(self) -> set[str]:
        """Return the keys that were set, and not to None."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None}
