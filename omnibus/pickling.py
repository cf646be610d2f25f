"""cloudpickle, with big buffers beside the pickle, and an explanation where it fails.

Pickles travel only between processes that may ship code to each other; who may is decided by the callers.
cloudpickle is imported only by the functions that need it.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, Final

from omnibus import tensors
from omnibus.errors import NotPicklable, SetupFailed

__all__ = ["INLINE", "dumps", "explain", "global_names", "hint", "loads", "short"]

INLINE: Final = 32 * 1024
"""Buffers of up to so many bytes stay in the pickle."""

_ATTEMPTS: Final = 200
_DEPTH: Final = 12


def dumps(value: Any, path: str, *, beside: bool = True) -> tuple[bytes, list[memoryview]]:
    """Return a pickle (protocol 5) and the big buffers beside it: memory of arrays and tensors, not copied.

    Where ``beside`` is false the buffers go into the pickle. Raises :class:`NotPicklable`, which names the
    part of ``value`` that cannot be pickled; ``path`` names the value.
    """
    try:
        return _dump(value, beside)
    except Exception as error:  # a reducer may raise anything
        raise NotPicklable(explain(value, path, error)) from error


def loads(data: bytes, buffers: Sequence[tensors.Buffer], what: str) -> Any:
    """Return the value of a pickle from a peer that may ship code.

    Raises :class:`SetupFailed` where it cannot be rebuilt here, such as for a module that cannot be imported.
    """
    try:
        return pickle.loads(data, buffers=[memoryview(buffer) for buffer in buffers])
    except Exception as error:  # a constructor may raise anything
        raise SetupFailed(
            f"{what} could not be unpickled here: {type(error).__name__}: {error}{hint(error)}"
        ) from error


def hint(error: BaseException) -> str:
    """Return what to do about an import that failed, or nothing for another error."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        root = error.name.partition(".")[0]
        places = ", ".join(repr(place) for place in sys.path[:4])
        return (
            f"; module {error.name!r} is not on this process's sys.path ({places}, …): "
            f"install it here, put its folder on PYTHONPATH, or call "
            f"cloudpickle.register_pickle_by_value({root}) where the work is submitted"
        )
    if isinstance(error, AttributeError | ImportError):
        return "; is the module that this process finds another version than the sender's?"
    return ""


def _dump(value: Any, beside: bool = True) -> tuple[bytes, list[memoryview]]:
    file = io.BytesIO()
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Put a big buffer beside the pickle; true leaves a small one in it."""
        raw = buffer.raw()
        if raw.nbytes > INLINE:
            buffers.append(raw)
        return raw.nbytes <= INLINE

    _pickler()(file, protocol=5, buffer_callback=keep if beside else None).dump(value)
    return file.getvalue(), buffers


@functools.cache
def _pickler() -> Any:
    """Return cloudpickle's pickler, taught that a plain torch tensor is a buffer; torch itself copies it."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if _is_plain_tensor(value):
                frame, content = tensors.encode(value)
                return tensors.decode, (frame, pickle.PickleBuffer(content))
            return super().reducer_override(value)

    return Pickler


def _is_plain_tensor(value: Any) -> bool:
    """Say whether a tensor is no more than its values: no device, gradient, larger storage or attributes."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not getattr(torch, "Tensor", None):
        return False
    if not value.is_cpu or value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return False
    whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return (
        whole
        and value.is_contiguous()
        and not (value.requires_grad or value.is_conj() or value.is_neg() or vars(value))
    )


def explain(value: Any, path: str, error: BaseException) -> str:
    """Return why ``value`` cannot be pickled: the innermost part that fails, its path, type and error."""
    found, culprit, reason = _culprit(value, path, error, [_ATTEMPTS], frozenset(), 0)
    what = "" if found == path else f" because of {found}"
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    return (
        f"{path} cannot be sent{what}, which is a {kind} ({type(reason).__name__}: {str(reason)[:200]}); "
        "leave it out, make it inside the task, or give its class a __reduce__"
    )


def _culprit(
    value: Any, path: str, error: BaseException, attempts: list[int], above: frozenset[int], depth: int
) -> tuple[str, Any, BaseException]:
    if depth < _DEPTH and id(value) not in above:
        for name, child in _children(value, path):
            if attempts[0] <= 0:
                break
            attempts[0] -= 1
            try:
                _dump(child)
            except Exception as reason:
                return _culprit(child, name, reason, attempts, above | {id(value)}, depth + 1)
    return path, value, error


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts that a pickle of ``value`` would hold, each with its path."""
    if isinstance(value, dict):
        yield from ((f"{path}[{short(key)}]", item) for key, item in value.items())
        yield from ((f"{path} key {short(key)}", key) for key in value)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{place}]", item) for place, item in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value, path)
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
        yield f"{path}.__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield from _children(value.args, f"{path}.args")
        yield from _children(value.keywords, f"{path}.keywords")
    elif isinstance(value, type):
        yield from (
            (f"{path}.{name}", item) for name, item in vars(value).items() if not name.startswith("__")
        )
    if not isinstance(value, type | types.FunctionType):
        yield from ((f"{path}.{name}", item) for name, item in _state(value).items())


def _state(value: Any) -> dict[str, Any]:
    """Return an instance's attributes, those in slots too."""
    try:
        slots = [name for kind in type(value).__mro__ for name in kind.__dict__.get("__slots__", ())]
        return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(
            value, "__dict__", {}
        )
    except Exception:  # a user's descriptors may raise anything
        return {}


def _function_parts(function: types.FunctionType, path: str) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():
            yield f"{path}'s variable {name!r}", cell.cell_contents
    for name in sorted(global_names(function.__code__)):
        if name in function.__globals__:
            yield f"{path}'s global {name!r}", function.__globals__[name]
    yield from _children(function.__defaults__ or (), f"{path}.__defaults__")
    yield from _children(function.__kwdefaults__ or {}, f"{path}.__kwdefaults__")


@functools.lru_cache(1024)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the names of the globals that a function's code reads, those of the functions inside it too."""
    import dis

    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (global_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(own).union(*inner)


def short(key: Any) -> str:
    """Return the ``repr`` of a key for a path, whatever its class does."""
    try:
        text = repr(key)
    except Exception:  # a user's class may raise anything
        text = f"<{type(key).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
