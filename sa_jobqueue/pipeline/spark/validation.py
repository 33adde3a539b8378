"""Validates the rows of a bulk write in batches, by the same rules as `Job(...)`.

Cheap checks run on whole columns. In a column with few distinct values, each value is checked once, with the function that
the constructor of a job uses. PostgreSQL checks that inputs are JSON, because it parses them anyway; only inputs that it
would accept and this library would not are searched for, by patterns that also match a few valid rows. Matching rows are
checked one by one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sa_jobqueue import payloads
from sa_jobqueue.errors import InvalidJobError, InvalidPayloadError, JobQueueError, UnknownJobTypeError
from sa_jobqueue.models.checks import LONGEST_TEXT, MOST_TEXT_BYTES, check_text
from sa_jobqueue.models.waits import waits
from sa_jobqueue.payloads import sealed
from sa_jobqueue.pipeline.spark.columns import CHECKS
from sa_jobqueue.pipeline.spark.ids import Ids
from sa_jobqueue.policies.fairness import check_fairness_key, key_of
from sa_jobqueue.registry.job_types import JobType, Registry
from sa_jobqueue.types import LATEST, LONGEST

NO_NUMBER: Final = "has NaN or Infinity, which JSON has no numbers for"
"""What stands in place of the JSON text of such a row, and why the row is refused."""
NO_YEAR: Final = "has a year before 1 or after 9999, which Python does not have"
"""The same for dates and instants."""
NO_TEXT: Final = "has bytes that are not UTF-8"
"""The same for texts, within documents and in other columns."""
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST_US: Final = LONGEST // _MICROSECOND
_EARLIEST_US: Final = round(datetime.min.replace(tzinfo=UTC).timestamp()) * 1_000_000
_LATEST_US: Final = int(LATEST.timestamp()) * 1_000_000
_TRACEPARENT: Final = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-|$)"
"""Source: W3C Trace Context, section 3.2; later versions may add fields."""
_UUID: Final = "^(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$"
_SUSPECT: Final = r"\\u(?:0000|[dD][89a-fA-F])|[eE][-+]?[0-9]{3}|[0-9]{309}"
"""Matches JSON text that PostgreSQL may not store, and numbers that Python may not read, or read as infinite or zero."""
_MANY_DIGITS: Final = r"\.[0-9]{9}|[0-9]{8}\.[0-9]|[0-9]{16}[eE]"
"""Matches JSON text with a number of 16 digits or more, which a float may not keep."""
_FRACTION: Final = re.compile(r"[0-9]+(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
_SURELY_SMALL: Final = payloads.MAX_BYTES // 6
"""Size in bytes of JSON text that is within the limit even if every byte is escaped as in `\\u1234`."""
_SURELY_FLAT: Final = 1_000
"""Size in bytes of JSON text that is too short to be nested too deeply."""
_LONGEST_REASON: Final = 300


_DISTINCT: Final = ("queue", "fairness_key", "on_failure", "priority", "max_attempts", "input_version", "rate_cost")
"""Columns with few distinct values, each of which is checked once."""


class Fault(NamedTuple):
    """Reason why a row cannot become a job."""

    field: str
    reason: str


@dataclass(slots=True)
class Checked:
    """Columns of a batch in the format of the staging table, and faults by the position of the row in the batch."""

    columns: dict[str, pa.Array]
    faults: dict[int, Fault] = field(default_factory=dict)

    def blame(self, rows: Iterable[int], name: str, reason: str) -> None:
        """Record a fault of those rows that have none yet."""
        for row in rows:
            self.faults.setdefault(row, Fault(name, reason[:_LONGEST_REASON]))

    def check_each(self, name: str, values: pa.Array, mask: pa.Array, check: Callable[[Any], object]) -> None:
        """Check values one by one where the mask is true. A null is passed as None."""
        rows = _true(mask)
        for row, value in zip(rows, values.take(pa.array(rows, pa.int64())).to_pylist(), strict=True):
            try:
                check(value)
            except InvalidJobError as error:
                self.blame([row], error.field, error.reason)

    def check_distinct(self, values: pa.Array, check: Callable[[Any], object]) -> None:
        """Check each distinct value once."""
        encoded = values.dictionary_encode()
        for code, value in enumerate(encoded.dictionary.to_pylist()):
            try:
                check(value)
            except InvalidJobError as error:
                self.blame(_true(pc.equal(encoded.indices, code)), error.field, error.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Checks the batches of one task, and generates missing ids.

    `type_name`: type of rows without one. `registry`: the application's job types, if rows are validated by them.
    """

    id_type: str = "uuid"
    id_factory: Callable[[], Any] | None = None
    type_name: str | None = None
    registry: Registry | None = None
    ids: Ids = field(default_factory=Ids)

    def check(self, batch: pa.RecordBatch) -> Checked:
        """Return a batch in the format of the staging table. Without a registry, invalid JSON is not detected yet."""
        values_by_name = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
        values_by_name = {name: values for name, values in values_by_name.items() if not pa.types.is_null(values.type)}
        checked = Checked({})
        self._check_distinct(checked, values_by_name, len(batch))
        self._check_times(checked, values_by_name)
        self._check_keys(checked, values_by_name, len(batch))
        self._check_blockers(checked, values_by_name)
        self._check_input(checked, values_by_name, len(batch))
        return checked

    def _check_distinct(self, checked: Checked, values_by_name: dict[str, pa.Array], count: int) -> None:
        types = _texts(values_by_name["type_name"]) if "type_name" in values_by_name else pa.nulls(count, pa.string())
        if self.type_name is not None:
            types = pc.fill_null(types, self.type_name)
        checked.blame(_true(types.is_null()), "type_name", "is null, and there is no option type")
        checked.check_distinct(types, CHECKS["type_name"])
        checked.columns["type_name"] = types
        for name in _DISTINCT:
            if name in values_by_name:
                checked.columns[name] = (
                    values_by_name[name] if pa.types.is_integer(values_by_name[name].type) else _texts(values_by_name[name])
                )
                checked.check_distinct(checked.columns[name], CHECKS[name])
        if "trace_context" in values_by_name:
            traces = checked.columns["trace_context"] = _texts(values_by_name["trace_context"])
            checked.blame(
                _true(pc.invert(pc.match_substring_regex(traces, _TRACEPARENT))),
                "trace_context",
                "is not a W3C traceparent, such as 00-<32 hex digits>-<16 hex digits>-01",
            )

    @staticmethod
    def _check_times(checked: Checked, values_by_name: dict[str, pa.Array]) -> None:
        for name in ("scheduled_at", "expires_at", "deadline"):
            if name in values_by_name:
                instants = values_by_name[name].cast(pa.int64())
                outside = pc.or_(pc.less(instants, _EARLIEST_US), pc.greater_equal(instants, _LATEST_US))
                checked.blame(_true(outside), name, f"must be in the years 1 to {LATEST.year - 1}")
                checked.columns[name] = values_by_name[name]
        for name, low, words in (
            ("delay", 0, f"must not be negative, nor above {LONGEST.days} days"),
            ("timeout", 1, f"must be above zero and at most {LONGEST.days} days, or null for no limit"),
        ):
            if name in values_by_name:
                microseconds, unreadable = _microseconds(values_by_name[name])
                outside = pc.or_(pc.less(microseconds, low), pc.greater(microseconds, _LONGEST_US))
                checked.blame(sorted({*unreadable, *_true(outside)}), name, words)
                checked.columns[name] = _interval(microseconds)
        if "delay" in values_by_name and "scheduled_at" in values_by_name:
            both = pc.and_(values_by_name["delay"].is_valid(), values_by_name["scheduled_at"].is_valid())
            checked.blame(_true(both), "delay", "give either delay or scheduled_at, not both")

    def _check_keys(self, checked: Checked, values_by_name: dict[str, pa.Array], count: int) -> None:
        for name in ("deduplication_key", "ordering_key"):
            if name in values_by_name:
                keys = checked.columns[name] = _texts(values_by_name[name])
                checked.check_each(name, keys, _odd_text(keys), CHECKS[name])
        if "id" not in values_by_name:
            checked.columns["id"] = self._new_ids(count)
            return
        ids = _texts(values_by_name["id"])
        if self.id_type == "text":
            checked.check_each("id", ids, _odd_text(ids), partial(check_text, "id"))
        else:
            odd = pc.invert(pc.match_substring_regex(ids, _UUID))
            checked.check_each("id", ids, odd, partial(_check_uuid, "id"))
        checked.columns["id"] = pc.coalesce(ids, self._new_ids(count)) if ids.null_count else ids

    def _new_ids(self, count: int) -> pa.Array:
        if self.id_factory is None:
            return self.ids.make(count)
        new_ids = [self.id_factory() for _ in range(count)]
        for job_id in new_ids:
            (check_text if self.id_type == "text" else _check_uuid)("id", job_id)
        return pa.array(map(str, new_ids), pa.string())

    def _check_blockers(self, checked: Checked, values_by_name: dict[str, pa.Array]) -> None:
        if "blockers" not in values_by_name:
            return
        ids = checked.columns["id"]
        texts: list[str | None] = [None] * len(ids)
        for row in _true(pc.greater(pc.list_value_length(values_by_name["blockers"]), 0)):
            try:
                texts[row] = self._blockers(values_by_name["blockers"][row].as_py(), ids[row].as_py())
            except InvalidJobError as error:
                checked.blame([row], error.field, error.reason)
        checked.columns["blockers"] = pa.array(texts, pa.string())

    def _blockers(self, blocker_ids: list[str | None], own_id: str) -> str:
        is_text = self.id_type == "text"
        for index, blocker_id in enumerate(blocker_ids):
            (check_text if is_text else _check_uuid)(f"blockers[{index}]", blocker_id)
        kind = str if is_text else UUID
        read = [kind(blocker_id) for blocker_id in blocker_ids if blocker_id is not None]
        waits(read, kind)  # each chain once
        if kind(own_id) in read:
            raise InvalidJobError(
                f"blockers[{read.index(kind(own_id))}]", "is the job's own chain, which cannot end before it"
            )
        escaped = (str(blocker_id).replace("\\", "\\\\").replace('"', '\\"') for blocker_id in read)
        return "{" + ",".join(f'"{blocker_id}"' for blocker_id in escaped) + "}"

    def _check_input(self, checked: Checked, values_by_name: dict[str, pa.Array], count: int) -> None:
        inputs = _texts(values_by_name["input"]) if "input" in values_by_name else pa.nulls(count, pa.string())
        if self.registry is not None:
            self._check_types(checked, inputs, self.registry)
            return
        checked.check_each("input", inputs, _suspect(inputs), _check_input)
        checked.check_each("input", inputs, pc.match_substring_regex(inputs, _MANY_DIGITS), _check_digits_of)
        checked.columns["input"] = _without_codecs(inputs)

    def _check_types(self, checked: Checked, inputs: pa.Array, registry: Registry) -> None:
        """Validate and convert each input as `handler.job` does, and apply the settings of its job type."""
        count = len(inputs)
        types = checked.columns["type_name"]
        encoded = types.dictionary_encode()
        kinds: list[JobType | None] = []
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            try:
                kinds.append(registry.get(name))
            except UnknownJobTypeError as error:
                kinds.append(None)
                checked.blame(_true(pc.equal(encoded.indices, code)), "type_name", str(error))
        versions = checked.columns.get("input_version", pa.nulls(count, pa.int32())).to_pylist()
        fairness_keys = checked.columns.get("fairness_key", pa.nulls(count, pa.string())).to_pylist()
        stored = inputs.to_pylist()
        # Most documents are stored as they are: Spark writes JSON as Pydantic does.
        odd = pc.or_(_suspect(inputs), pc.match_substring(inputs, payloads.CODEC_MARK))
        plain = pc.invert(pc.fill_null(odd, True)).to_pylist()
        as_written = [_as_written(kind) for kind in kinds]
        for row, code in enumerate(encoded.indices.to_pylist()):
            kind = None if code is None else kinds[code]
            if kind is None or row in checked.faults:
                continue
            if plain[row] and as_written[code](stored[row]) and versions[row] in {None, kind.version}:
                continue
            try:
                stored[row], fairness_keys[row] = _stored(kind, stored[row], versions[row], fairness_keys[row])
            except InvalidJobError as error:
                checked.blame([row], error.field, error.reason)
        checked.columns["input"] = pa.array(stored, pa.string())
        checked.columns["fairness_key"] = pa.array(fairness_keys, pa.string())

        def of_kind(read: Callable[[JobType], Any], like: pa.DataType) -> pa.Array:
            return pa.array([None if kind is None else read(kind) for kind in kinds], like).take(encoded.indices)

        checked.columns["input_version"] = of_kind(lambda kind: kind.version, pa.int32())
        for name, read, like in (
            ("queue", lambda kind: kind.queue, pa.string()),
            ("priority", lambda kind: kind.priority, pa.int32()),
            ("max_attempts", lambda kind: kind.max_attempts, pa.int32()),
            ("rate_cost", lambda kind: kind.rate_cost, pa.int32()),
            ("timeout", lambda kind: None if kind.timeout is None else str(kind.timeout.total_seconds()), pa.string()),
        ):
            type_values = of_kind(read, like)
            here = checked.columns.get(name)
            checked.columns[name] = type_values if here is None else pc.coalesce(here.cast(like), type_values)


def _without_codecs(inputs: pa.Array) -> pa.Array:
    """Return the inputs so that none chooses the codec that decodes it, as `payloads.escaped` does."""
    marked = pc.fill_null(pc.match_substring(inputs, payloads.CODEC_MARK), False)
    if not pc.any(marked).as_py():
        return inputs
    return pa.array(map(_without_codec, inputs.to_pylist(), marked.to_pylist()), pa.string())


def _without_codec(text: str | None, is_marked: bool) -> str | None:
    if not is_marked or text is None:
        return text
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text  # refused later
    stored = payloads.escaped(document)
    return text if stored is document else json.dumps(stored)


def check_inputs(inputs: pa.Array) -> dict[int, Fault]:
    """Check each input of a batch that PostgreSQL refused; return the faults by row."""
    checked = Checked({})
    checked.check_each("input", inputs, inputs.is_valid(), _check_input)
    return checked.faults


def readable(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, Fault]]:
    """Return a batch whose texts are UTF-8, with replacement characters in the rows that have other bytes, and these faults.

    Spark keeps any bytes in a STRING, such as those of a file in another encoding.
    """
    faults: dict[int, Fault] = {}
    for place, name in enumerate(batch.schema.names):
        values = batch.column(place)
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            binary = pa.list_(pa.binary()) if pa.types.is_list(values.type) else pa.binary()
            texts = [_replaced(value) for value in values.cast(binary).to_pylist()]
            faults |= {row: Fault(name, NO_TEXT) for row, (_, is_odd) in enumerate(texts) if is_odd and row not in faults}
            batch = batch.set_column(place, batch.schema.field(place), pa.array([text for text, _ in texts], values.type))
    return batch, faults


def _replaced(value: bytes | list[bytes | None] | None) -> tuple[str | list[str | None] | None, bool]:
    if isinstance(value, list):
        parts = [_replaced(part) for part in value]
        return [text if isinstance(text, str) else None for text, _ in parts], any(is_odd for _, is_odd in parts)
    if value is None:
        return None, False
    text = value.decode(errors="replace")
    return text, text.encode() != value


def _check_input(text: str | None) -> None:
    document, exact_document = _parsed(text), _parsed(text, _exact_float)
    payloads.check_json("input", document)
    if exact_document != document:
        _check_digits("input", document, exact_document)


def _check_digits_of(text: str) -> None:
    """Check the numbers of a document. It is parsed only if one of them is odd: that takes as long as all other checks."""
    if any(isinstance(_exact_float(digits), str) for digits in _FRACTION.findall(text)):
        _check_input(text)


def _parsed(text: str | None, read_float: Callable[[str], Any] = float) -> Any:
    if text is None:
        return None
    if text in {NO_NUMBER, NO_YEAR, NO_TEXT}:
        raise InvalidPayloadError("input", text)
    try:
        return json.loads(text, parse_float=read_float)
    except (ValueError, RecursionError) as error:
        raise InvalidPayloadError("input", f"is not JSON: {error}") from None


def _exact_float(digits: str) -> float | str:
    """Return a JSON number, as text if a float has not all of its digits.

    Not compared with the shortest text of the float: Java writes others, such as 4.9E-324, or with more digits.
    """
    number = float(digits)
    if repr(number) == digits or not math.isfinite(number):
        return number
    try:
        exact = Decimal(digits)
    except ArithmeticError:  # an exponent that Decimal does not have
        return digits
    return number if Decimal(f"{number:.{len(exact.as_tuple().digits) - 1}e}") == exact else digits


def _as_written(kind: JobType | None) -> Callable[[str], bool]:
    """Return what decides whether an input of the handler's own version is valid, and stored as this very text."""
    if kind is None or kind.codec is not None or kind.fairness_by is not None:
        return lambda _: False
    return kind.input.is_written_as


def _stored(kind: JobType, text: str | None, version: int | None, fairness_key: str | None) -> tuple[str, str | None]:
    """Return an input as `handler.job` stores it, and the fairness key: that of the row, or the handler's."""
    # No document of a DataFrame is one that a codec has encoded, whatever it looks like.
    data, exact_data = payloads.escaped(_parsed(text)), payloads.escaped(_parsed(text, _exact_float))
    read_version = kind.version if version is None else version
    try:
        value = kind.decode(data, read_version)
        document = kind.input.document("input", value)
        if exact_data != data:  # has numbers with more digits than a float: a Decimal reads them as text
            value = kind.decode(exact_data, read_version)
            rounded, document = document, kind.input.document("input", value)
            _check_digits("input", rounded.value, document.value)
        if fairness_key is None and kind.fairness_by is not None:
            fairness_key = check_fairness_key(key_of(kind.fairness_by, value, document.value))
        return sealed("input", document, kind.codec).text, fairness_key
    except InvalidJobError:
        raise
    except JobQueueError as error:
        raise InvalidPayloadError("input", str(error)) from error


def _check_digits(path: str, rounded: Any, exact: Any) -> None:
    """Refuse a number that reached the document as the text of its digits, which no type of the payload has read.

    `rounded`, `exact`: the documents in which such numbers were read from floats and from text. Raises: InvalidPayloadError.
    """
    if isinstance(exact, str) and isinstance(rounded, float):
        raise InvalidPayloadError(
            path,
            f"is {exact[:50]}, with more digits than a float keeps: write it as text, or for a handler (option app) with a "
            "field of type Decimal",
        )
    if isinstance(exact, dict) and isinstance(rounded, dict):
        for name in exact.keys() & rounded.keys():
            _check_digits(f"{path}.{name}", rounded[name], exact[name])
    elif isinstance(exact, list) and isinstance(rounded, list):
        for index, pair in enumerate(zip(rounded, exact, strict=False)):
            _check_digits(f"{path}[{index}]", *pair)


def _check_uuid(name: str, value: object) -> None:
    try:
        UUID(str(value))
    except ValueError:
        raise InvalidJobError(name, f"must be a UUID, as the ids of this queue are, got {value!r}") from None


def _texts(values: pa.Array) -> pa.Array:
    return values if values.type == pa.string() else values.cast(pa.string())


def _true(mask: pa.Array) -> list[int]:
    row_numbers: list[int] = np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False)).tolist()
    return row_numbers


def _odd_text(values: pa.Array) -> pa.Array:
    lengths = pc.utf8_length(values)
    too_long = pc.or_(pc.greater(lengths, LONGEST_TEXT), pc.greater(pc.binary_length(values), MOST_TEXT_BYTES))
    return pc.or_(pc.or_(pc.less(lengths, 1), too_long), pc.match_substring(values, "\x00"))


def _suspect(inputs: pa.Array) -> pa.Array:
    sizes = pc.binary_length(inputs)
    suspect = pc.or_(pc.match_substring_regex(inputs, _SUSPECT), pc.greater(sizes, _SURELY_SMALL))
    if (pc.max(sizes).as_py() or 0) <= _SURELY_FLAT:
        return suspect
    opened = pc.add(pc.count_substring(inputs, "["), pc.count_substring(inputs, "{"))
    return pc.or_(suspect, pc.greater(opened, _SURELY_FLAT // 2))


def _microseconds(values: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    """Return durations in whole microseconds, and the positions of values that are not finite numbers."""
    if pa.types.is_duration(values.type):
        return values.cast(pa.duration("us")).cast(pa.int64()), ()
    numbers = values.cast(pa.float64())
    unreadable = _true(pc.invert(pc.is_finite(numbers)))
    # Clamp values that are out of bounds in any case, so that the result fits into 64 bits.
    limited = pc.if_else(pc.is_finite(numbers), numbers, 0.0)
    limited = pc.max_element_wise(pc.min_element_wise(limited, 1e11, skip_nulls=False), -1e11, skip_nulls=False)
    return pc.round(pc.multiply(limited, 1e6)).cast(pa.int64()), unreadable


def _interval(microseconds: pa.Array) -> pa.Array:
    """Return durations as text for PostgreSQL: seconds with six decimal places. Negative ones are already faults."""
    million = pa.scalar(1_000_000, pa.int64())
    whole = pc.divide(microseconds, million)
    fraction = pc.subtract(microseconds, pc.multiply(whole, million))
    places = pc.utf8_lpad(pc.cast(pc.abs(fraction), pa.string()), 6, "0")
    return pc.binary_join_element_wise(pc.cast(whole, pa.string()), places, ".")
