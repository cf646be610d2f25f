"""Shipping functions and classes: to name them on the wire, and to load them where they are to run.

A function travels by name (``package.module:function``) or as a pickle. Under a pickle an importable function
is no more than its name too; one of ``__main__``, of a notebook, or inside another function goes by value.
Both are named by a digest, so that a receiver which has seen it needs it only once.
"""

from __future__ import annotations

import builtins
import difflib
import importlib
import logging
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from omnibus import pickling
from omnibus.errors import NotPicklable, SetupFailed, Unauthorized, UsageError
from omnibus.tensors import Buffer

try:
    from _blake2 import blake2b  # hashlib brings OpenSSL along, which an idle worker would carry for nothing
except ImportError:
    from hashlib import blake2b

__all__ = ["ALLOW_VARIABLE", "Shelf", "Shipped", "allowed", "is_stable", "load", "name_of", "ship"]

ALLOW_VARIABLE: Final = "OMNIBUS_ALLOW"
"""Set for a node's processes: the packages, with commas, whose functions may be called by name."""

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHELF: Final = 1024


class Shipped(NamedTuple):
    """What names a function on the wire: a name to import it by or else a pickle, and its digest."""

    name: str | None
    digest: bytes
    pickle: bytes | None


def ship(obj: Any, *, code: bool) -> Shipped:
    """Return a function, a class or another callable as it travels; ``code`` says whether a pickle may.

    A string is taken for a name, ``package.module:qualified.name``, and is not looked up here. Where no
    pickle may travel an importable function or class goes by its name.

    Raises :class:`NotPicklable`, which names the function and what in it cannot be pickled, and
    :class:`UsageError` for what is neither a name nor callable.
    """
    if isinstance(obj, str):
        return _ship_name(obj)
    if not callable(obj):
        raise UsageError(
            f"expected a function, a class or a name such as 'package.module:function', not {obj!r}"
        )
    if not code:
        name = name_of(obj)
        if name is None:
            raise NotPicklable(
                f"{_title(obj)} cannot be imported by a name, and pickles do not travel on this link: "
                "move it to the top level of a module that the workers can import, or connect with the "
                "mesh's key"
            )
        return _ship_name(name)
    data, _ = pickling.dumps(obj, _title(obj), beside=False)
    return Shipped(None, blake2b(data, digest_size=16).digest(), data)


def _ship_name(name: str) -> Shipped:
    if not _NAME.fullmatch(name):
        module, _, function = name.rpartition(".")
        meant = f"; did you mean '{module}:{function}'?" if module and ":" not in name else ""
        raise UsageError(
            f"{name[:200]!r} is no name of a function; expected 'package.module:function'{meant}"
        )
    if name.startswith("__main__:"):
        raise UsageError(
            f"{name!r} names another function in each process; submit the function itself, not its name"
        )
    return Shipped(
        name, blake2b(name.encode(), digest_size=16, person=b"omnibus.name").digest(), None
    )


def name_of(obj: Any) -> str | None:
    """Return the name by which another process can import this very object, or ``None``."""
    module, qualname = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or module in ("__main__", "__mp_main__"):
        return None
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    name = f"{module}:{qualname}"
    return name if found is obj and _NAME.fullmatch(name) else None


def _title(obj: Any) -> str:
    kind = "class" if isinstance(obj, type) else "function" if hasattr(obj, "__qualname__") else "callable"
    name = getattr(obj, "__qualname__", None) or type(obj).__qualname__
    return f"{kind} {getattr(obj, '__module__', None) or type(obj).__module__}.{name}"


# --- load ---


def allowed(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the packages that :data:`ALLOW_VARIABLE` names."""
    return tuple(filter(None, environ.get(ALLOW_VARIABLE, "").split(",")))


def load(source: str | Buffer, *, code: bool, allow: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the function of a name or of a pickle.

    A pickle is loaded only where ``code`` is true. A name is imported where ``code`` is true or its module is
    in one of the packages of ``allow``; where ``allow`` is given it binds in either case, and then the
    function must be *defined* in such a package, and no part of its name may start with an underscore: ``from
    os import system`` in a module lends it to nobody.

    Raises :class:`Unauthorized`, or :class:`SetupFailed`, which says what was missing and where it was looked
    for.
    """
    if not isinstance(source, str):
        if not code:
            raise Unauthorized(
                "a pickled function came over a link that may not carry code; send the name of a function"
            )
        found = pickling.loads(bytes(source), (), "a function")
    else:
        found = _import(source, code, tuple(allow))
    if not callable(found):
        raise SetupFailed(f"{_short(source)} is a {type(found).__qualname__}, which cannot be called")
    return found  # type: ignore[no-any-return]


def _import(name: str, code: bool, allow: tuple[str, ...]) -> Any:
    if not _NAME.fullmatch(name):
        raise SetupFailed(f"{_short(name)} is no name of a function; expected 'package.module:function'")
    module, _, qualname = name.partition(":")
    if (allow or not code) and (
        not _within(module, allow) or any(part.startswith("_") for part in qualname.split("."))
    ):
        raise Unauthorized(
            f"function {_short(name)} may not be called by name here: allowed are public names in "
            f"{list(allow) or 'no module'}"
        )
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may raise anything, and a script may end itself
        raise SetupFailed(
            f"function {_short(name)}: module {module!r} could not be imported: "
            f"{type(error).__name__}: {error}{pickling.hint(error)}"
        ) from error
    for part in qualname.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            where = getattr(sys.modules.get(module), "__file__", None) or "no file"
            raise SetupFailed(
                f"function {_short(name)}: there is no {part!r} in module {module!r} ({where}){meant}"
            )
        found = getattr(found, part)
    home = getattr(found, "__module__", None)
    if (allow or not code) and not (isinstance(home, str) and _within(home, allow)):
        raise Unauthorized(
            f"function {_short(name)} is defined in {home!r}, which is not within {list(allow)}"
        )
    return found


def _within(module: str, allow: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in allow)


def _short(source: str | Buffer) -> str:
    text = repr(source) if isinstance(source, str) else f"pickle of {len(source)} bytes"
    return text if len(text) <= 120 else text[:117] + "..."


# --- what may be pickled once ---

_IMMUTABLE: Final = (
    *(int, float, complex, str, bytes, type(None), types.ModuleType, logging.Logger),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)
"""Types whose objects stay what they are, or are pickled as a name."""
_ABSENT: Final = object()
_Watch = tuple[Any, str, Any]
"""A namespace, a name in it, and what it named when the pickle was made."""


def is_stable(obj: Any) -> bool:
    """Say whether one pickle of a callable stays right for ever, so that it may be kept by identity.

    True of what is pickled by name, and of a function that is pickled by value if it has no closure and reads
    no global that can be bound anew. Bound methods, partials, instances and closures have state.
    :class:`Shelf` keeps more than these.
    """
    return isinstance(obj, str) or _watched(obj) == []


class Shelf:
    """Keeps pickles of functions, and makes a new one where the old would be out of date.

    A function of ``__main__`` goes by value, with the globals that it reads. A notebook binds these anew all
    the time, so a kept pickle is used only while each of them is the object that it was; a function that
    reads a mutable one (a list, an array) is pickled each time.
    """

    def __init__(self, *, code: bool) -> None:
        self._code = code
        self._kept: dict[Any, tuple[Shipped, list[_Watch]]] = {}

    def ship(self, obj: Any) -> Shipped:
        """Return what :func:`ship` returns."""
        try:
            kept = self._kept.get(obj)
        except TypeError:  # an instance that cannot be hashed
            return ship(obj, code=self._code)
        if kept is not None:
            shipped, watched = kept
            for space, name, value in watched:
                if space.get(name, _ABSENT) is not value:
                    break
            else:
                return shipped
        found = [] if isinstance(obj, str) or not self._code else _watched(obj)
        shipped = ship(obj, code=self._code)
        if found is not None:
            if len(self._kept) >= _SHELF:
                self._kept.clear()
            self._kept[obj] = shipped, found
        return shipped


def _watched(obj: Any) -> list[_Watch] | None:
    """Return what must stay bound for a pickle to stay right, or ``None`` where that does not suffice."""
    watched: dict[tuple[int, str], _Watch] = {}
    kind = isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType)
    return list(watched.values()) if kind and _watch(obj, watched, set()) else None


def _watch(obj: Any, watched: dict[tuple[int, str], _Watch], seen: set[int]) -> bool:
    """Add the names that ``obj`` depends on; false where it has state that no name stands for."""
    if isinstance(obj, _IMMUTABLE) or id(obj) in seen:
        return True
    seen.add(id(obj))
    if isinstance(obj, tuple | frozenset):
        return all(_watch(item, watched, seen) for item in obj)
    if isinstance(obj, staticmethod | classmethod):
        return _watch(obj.__func__, watched, seen)
    if isinstance(obj, property):
        return all(_watch(part, watched, seen) for part in (obj.fget, obj.fset, obj.fdel))
    if isinstance(obj, types.BuiltinFunctionType):
        return isinstance(obj.__self__, types.ModuleType)  # else a bound method, such as [].append
    if isinstance(obj, type):
        return _by_reference(obj) or _watch_class(obj, watched, seen)
    if isinstance(obj, types.FunctionType):
        return _by_reference(obj) or _watch_function(obj, watched, seen)
    return False


def _watch_function(obj: types.FunctionType, watched: dict[tuple[int, str], _Watch], seen: set[int]) -> bool:
    if obj.__closure__ or not all(_watch_name(vars(obj), name, watched, seen) for name in vars(obj)):
        return False
    for name in sorted(pickling.global_names(obj.__code__)):
        if name not in obj.__globals__ and hasattr(builtins, name):
            continue
        if not _watch_name(obj.__globals__, name, watched, seen):
            return False
    defaults = (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
    return all(_watch(value, watched, seen) for value in defaults)


def _watch_name(space: Any, name: str, watched: dict[tuple[int, str], _Watch], seen: set[int]) -> bool:
    value = space.get(name, _ABSENT)
    watched[id(space), name] = space, name, value
    return value is _ABSENT or _watch(value, watched, seen)


def _watch_class(obj: type, watched: dict[tuple[int, str], _Watch], seen: set[int]) -> bool:
    space = vars(obj)
    for name, value in space.items():
        watched[id(obj), name] = space, name, value
        # what a metaclass or decorator puts there (_abc_impl, a dataclass's __init__) is made with the class
        made = name == "_abc_impl" or (name.startswith("__") and "__dataclass_fields__" in space)
        plain = name.startswith("__") and not isinstance(
            value, types.FunctionType | classmethod | staticmethod
        )
        if not (made or plain or _watch(value, watched, seen)):
            return False
    return all(_watch(base, watched, seen) for base in obj.__bases__)


def _by_reference(obj: Any) -> bool:
    """Say whether cloudpickle pickles a function or a class as no more than its name."""
    import cloudpickle

    if name_of(obj) is None:
        return False
    by_value = cloudpickle.list_registry_pickle_by_value()
    return not any(obj.__module__ == prefix or obj.__module__.startswith(prefix + ".") for prefix in by_value)
