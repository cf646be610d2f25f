"""Each module says what it exports, and the package's public names are those that are listed here."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

import omnibus
from omnibus import errors
from tests.repo.tree import modules, parse

PUBLIC = [
    "Actor",
    "ActorRef",
    "AlreadyExists",
    "AsyncBus",
    "Bus",
    "BusClosed",
    "Cancelled",
    "CapacityExceeded",
    "ConnectTimeout",
    "DeadLetter",
    "Executor",
    "Expired",
    "ForkedError",
    "Future",
    "MeshError",
    "NotFound",
    "NotPicklable",
    "OmnibusError",
    "OutOfMemory",
    "Preempted",
    "ProtocolError",
    "RemoteError",
    "SetupFailed",
    "TaskError",
    "TaskTimeout",
    "Unauthorized",
    "Unreachable",
    "UsageError",
    "WorkerDied",
    "__version__",
    "aconnect",
    "connect",
    "current",
    "serve",
]


def is_bare(name: str) -> bool:
    """Tell whether the module is a docstring and nothing else."""
    body = parse(modules()[name]).body
    return len(body) == 1 and isinstance(body[0], ast.Expr)


@pytest.mark.parametrize("name", [name for name in modules() if not is_bare(name)])
def test_a_module_exports_what_it_says(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    assert isinstance(exported, list), f"{name} has no list __all__"
    assert len(exported) == len(set(exported)), f"{name} exports a name twice"
    missing = [one for one in exported if not hasattr(module, one)]
    assert not missing, f"{name} exports what it does not have: {missing}"


def test_the_public_names_are_these() -> None:
    assert sorted(omnibus.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(omnibus))


def test_every_error_is_public() -> None:
    tree = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    assert tree <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_found_once_and_kept(name: str) -> None:
    value = getattr(omnibus, name)
    assert vars(omnibus)[name] is value
    assert not inspect.ismodule(value), f"omnibus.{name} is shadowed by a module of that name"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'omnibus' has no attribute 'konnect'"):
        omnibus.konnect  # noqa: B018


def test_a_public_name_shadows_no_module() -> None:
    assert not {f"omnibus.{name}" for name in PUBLIC} & set(modules())
