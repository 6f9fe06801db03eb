"""Knows how a parsed document is fitted to a struct with *every* misfit found, each with its path.

:func:`fit` always returns a value of the type: what does not fit is reported and stands in as something
harmless, so that rules about other fields can still be asked. A value that fits costs one conversion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

__all__ = ["Misfit", "Path", "accepted", "fit", "found", "path_text"]

T = TypeVar("T")
Path = tuple[str | int, ...]
"""Keys and positions from the top of the document."""

MAX_DEPTH = 60
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Misfit(NamedTuple):
    """One value that is not what it should be."""

    path: Path
    found: str
    accepted: str


def fit(value: Any, kind: type[T], path: Path, report: Callable[[Misfit], None]) -> T:
    """Return ``value`` as a ``kind``, telling ``report`` of everything in it that does not fit."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, RecursionError):
        wanted: Any = kind
        fitted: T = _fit(value, _type_info(wanted), path, report)
        return fitted


def path_text(path: Path) -> str:
    """Return a path as text, such as ``$.results[3].point``; odd keys are quoted and escaped."""
    parts = ["$"]
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if _PLAIN.match(step) else f"[{json.dumps(step[:80])}]")
    return "".join(parts)


def found(value: Any, limit: int = 80) -> str:
    """Return JSON text of ``value`` in ASCII, cut at ``limit`` characters."""
    if value is msgspec.UNSET:
        return "nothing"
    try:
        text = json.dumps(value, default=lambda other: json.loads(msgspec.json.encode(other)))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@lru_cache(maxsize=128)
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _fit(value: Any, info: inspect.Type, path: Path, report: Callable[[Misfit], None]) -> Any:
    if len(path) > MAX_DEPTH:
        report(Misfit(path, "a value nested too deeply", "less depth"))
        return _stand_in(info)
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        return _fit_struct(value, info, path, report)
    if isinstance(info, inspect.VarTupleType) and isinstance(value, list):
        items = tuple(_fit(item, info.item_type, (*path, at), report) for at, item in enumerate(value))
        if _length_fits(len(items), info):
            return items
    elif isinstance(info, inspect.TupleType) and isinstance(value, list):
        if len(value) == len(info.item_types):
            pairs = enumerate(zip(value, info.item_types, strict=True))
            return tuple(_fit(item, kind, (*path, at), report) for at, (item, kind) in pairs)
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        return {key: _fit(item, info.value_type, (*path, key), report) for key, item in value.items()}
    elif isinstance(info, inspect.UnionType):
        return _fit_union(value, info, path, report)
    elif _leaf_fits(value, info):
        return info.cls(value) if isinstance(info, inspect.EnumType) else value
    report(Misfit(path, found(value), accepted(info)))
    return _stand_in(info)


def _fit_struct(
    value: dict[str, Any], info: inspect.StructType, path: Path, report: Callable[[Misfit], None]
) -> Any:
    fields: dict[str, Any] = {}
    if info.tag_field is not None and value.get(info.tag_field) != info.tag:
        tag = value.get(info.tag_field, msgspec.UNSET)
        report(Misfit((*path, info.tag_field), found(tag), found(info.tag)))
    for field in info.fields:
        if field.encode_name in value:
            at = (*path, field.encode_name)
            fields[field.name] = _fit(value[field.encode_name], field.type, at, report)
        elif field.required:
            report(Misfit((*path, field.encode_name), "nothing", accepted(field.type)))
            fields[field.name] = _stand_in(field.type)
    return info.cls(**fields)


def _fit_union(value: Any, info: inspect.UnionType, path: Path, report: Callable[[Misfit], None]) -> Any:
    structs = [kind for kind in info.types if isinstance(kind, inspect.StructType)]
    if isinstance(value, dict) and structs:
        tagged = [kind for kind in structs if kind.tag_field and value.get(kind.tag_field) == kind.tag]
        if tagged or len(structs) == 1:
            return _fit(value, (tagged or structs)[0], path, report)
        field = structs[0].tag_field or ""
        words = " or ".join(found(kind.tag) for kind in structs)
        report(Misfit((*path, field), found(value.get(field, msgspec.UNSET)), words))
        return _stand_in(structs[-1])
    for kind in info.types:
        if _leaf_fits(value, kind):
            return kind.cls(value) if isinstance(kind, inspect.EnumType) else value
    for kind in info.types:
        if isinstance(kind, inspect.DictType if isinstance(value, dict) else inspect.VarTupleType) and (
            isinstance(value, dict | list)
        ):
            return _fit(value, kind, path, report)
    report(Misfit(path, found(value), accepted(info)))
    return _stand_in(info)


def _leaf_fits(value: Any, info: inspect.Type) -> bool:
    if isinstance(info, inspect.AnyType):
        return True
    if isinstance(info, inspect.NoneType):
        return value is None
    if isinstance(info, inspect.BoolType):
        return isinstance(value, bool)
    if isinstance(info, inspect.StrType):
        return isinstance(value, str)
    if isinstance(info, inspect.LiteralType):
        return any(type(value) is type(one) and value == one for one in info.values)
    if isinstance(info, inspect.EnumType):
        return isinstance(value, str) and value in {member.value for member in info.cls}
    if isinstance(info, inspect.IntType | inspect.FloatType):
        kinds = (int,) if isinstance(info, inspect.IntType) else (int, float)
        return type(value) in kinds and _is_finite(value, info) and _in_bounds(value, info)
    return False


def _is_finite(value: float, info: inspect.IntType | inspect.FloatType) -> bool:
    """Say whether a whole number that stands for a number of seconds is not too large for one."""
    return isinstance(info, inspect.IntType) or abs(value) < 1 << 1000


def _in_bounds(value: float, info: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (info.ge is None or value >= info.ge)
        and (info.gt is None or value > info.gt)
        and (info.le is None or value <= info.le)
    )


def _length_fits(length: int, info: inspect.VarTupleType) -> bool:
    return (info.min_length or 0) <= length <= (length if info.max_length is None else info.max_length)


def accepted(info: inspect.Type) -> str:
    """Return in words what fits."""
    if isinstance(info, inspect.UnionType):
        return " or ".join(dict.fromkeys(accepted(kind) for kind in info.types))
    if isinstance(info, inspect.LiteralType):
        return " or ".join(found(value) for value in info.values)
    if isinstance(info, inspect.EnumType):
        return " or ".join(found(member.value) for member in info.cls)
    if isinstance(info, inspect.IntType | inspect.FloatType):
        name = "a whole number" if isinstance(info, inspect.IntType) else "a number"
        bound = f" of at least {info.ge:g}" if info.ge is not None else ""
        return name + (f" above {info.gt:g}" if info.gt is not None else bound)
    if isinstance(info, inspect.VarTupleType):
        return f"a list of {info.max_length}" if info.max_length is not None else "a list"
    if isinstance(info, inspect.TupleType):
        return f"a list of {len(info.item_types)}"
    names: dict[type, str] = {
        inspect.StructType: "an object",
        inspect.DictType: "an object",
        inspect.NoneType: "null",
        inspect.BoolType: "true or false",
        inspect.StrType: "text",
    }
    return names.get(type(info), "something else")


def _stand_in(info: inspect.Type) -> Any:
    """Return some value of the type."""
    if isinstance(info, inspect.StructType):
        return info.cls(**{field.name: _stand_in(field.type) for field in info.fields if field.required})
    if isinstance(info, inspect.UnionType):
        has_null = any(isinstance(kind, inspect.NoneType) for kind in info.types)
        return None if has_null else _stand_in(info.types[-1])
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    if isinstance(info, inspect.EnumType):
        return next(iter(info.cls))
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return info.ge if info.ge is not None else 0
    if isinstance(info, inspect.TupleType):
        return tuple(_stand_in(kind) for kind in info.item_types)
    plain: dict[type, Any] = {
        inspect.VarTupleType: (),
        inspect.DictType: {},
        inspect.BoolType: False,
        inspect.StrType: "",
    }
    return plain.get(type(info))
