"""The layers hold: imports point down, cores are pure, ``zmq`` is in shells alone, start-up is light."""

from __future__ import annotations

import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.repo.layers import FACES, IMPURE, LAYERS, PURE, SHELLS
from tests.repo.tree import ROOMS, ROOT, Import, imports, modules

LAYER = {name: layer for layer, names in LAYERS.items() for name in names.split()}
HEAVY = ("numpy", "torch", "pyarrow", "ray", "cloudpickle", "typer", "rich", "sklearn", "starlette")
# Loaded inside the functions that need them, wherever they are needed.
LATE = {"torch", "pyarrow", "ray", "sklearn", "starlette", "uvicorn", "httpx"}


def line_of(name: str) -> str | None:
    """Return the table's name for the module: its own, or that of its sub-package of ``omnibus``."""
    parent = name.rpartition(".")[0]
    if name in LAYER:
        return name
    return parent if parent in LAYER and parent not in ROOMS.values() else None


def edges() -> Iterator[tuple[str, Import]]:
    """Yield each import of a module of this tree by another."""
    for name in modules():
        yield from ((name, found) for found in imports(name) if found.top == "omnibus")


def room(name: str) -> str:
    """Return the import name of the folder that a module lives in."""
    return max((package for package in ROOMS.values() if f"{name}.".startswith(f"{package}.")), key=len)


def where(name: str, found: Import) -> str:
    return f"{modules()[name].relative_to(ROOT)}:{found.line} imports {found.target}"


def test_every_module_has_a_layer() -> None:
    unknown = [name for name in modules() if line_of(name) is None]
    assert not unknown, f"add these to the layer table in tests/repo/layers.py: {unknown}"


def test_the_table_is_consistent() -> None:
    names = [name for line in LAYERS.values() for name in line.split()]
    assert len(names) == len(set(names)), "a module stands in two layers"
    assert set(LAYER) >= PURE | SHELLS | FACES
    assert not PURE & SHELLS


def test_imports_of_this_tree_name_modules_of_this_tree() -> None:
    wrong = [where(name, found) for name, found in edges() if found.target not in modules()]
    assert not wrong, wrong


def test_imports_point_down() -> None:
    wrong = []
    for name, found in edges():
        upper, lower = line_of(name), line_of(found.target)
        if upper and lower and LAYER[lower] > LAYER[upper]:
            wrong.append(f"{where(name, found)}: from layer {LAYER[upper]} up to {LAYER[lower]}")
    assert not wrong, wrong


def test_imports_make_no_cycle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for name, found in edges():
        graph[name].add(found.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"imports make a cycle: {' <- '.join(error.args[1])}")


def test_brokers_and_actors_know_each_other_by_the_wire_alone() -> None:
    apart = {"omnibus.brokers": "omnibus.actors", "omnibus.actors": "omnibus.brokers"}
    wrong = [where(name, found) for name, found in edges() if apart.get(room(name)) == room(found.target)]
    assert not wrong, wrong


def test_a_client_knows_the_broker_by_the_wire_alone() -> None:
    wrong = [
        where(name, found)
        for name, found in edges()
        if room(name) == "omnibus" and name not in FACES and room(found.target) == "omnibus.brokers"
    ]
    assert not wrong, wrong


def test_launch_imports_only_errors_and_rundir() -> None:
    allowed = {"omnibus.errors", "omnibus.rundir"}
    wrong = [
        where(name, found)
        for name, found in edges()
        if room(name) == "omnibus.launch" != room(found.target) and found.target not in allowed
    ]
    assert not wrong, wrong


def test_folders_import_relatively_inside_and_absolutely_across() -> None:
    bare = {*ROOMS} - {"omnibus"}
    wrong = [where(name, found) for name in modules() for found in imports(name) if found.top in bare]
    assert not wrong, f"import these as omnibus.…: {wrong}"


@pytest.mark.parametrize("name", sorted(PURE & set(modules())))
def test_a_pure_module_imports_no_clock_chance_thread_or_socket(name: str) -> None:
    wrong = [where(name, found) for found in imports(name) if found.top in IMPURE]
    assert not wrong, wrong


def test_a_pure_module_imports_only_pure_ones_of_its_room() -> None:
    wrong = [
        where(name, found)
        for name, found in edges()
        if name in PURE and room(name) == room(found.target) != "omnibus" and found.target not in PURE
    ]
    assert not wrong, wrong


def test_only_shells_import_zmq() -> None:
    wrong = [
        where(name, found)
        for name in modules()
        for found in imports(name)
        if found.top == "zmq" and name not in SHELLS
    ]
    assert not wrong, wrong


def test_the_broker_needs_zmq_and_msgpack_alone() -> None:
    allowed = {"omnibus", "zmq", "msgpack", *sys.stdlib_module_names}
    wrong = [
        where(name, found)
        for name in modules()
        for found in imports(name)
        if room(name) == "omnibus.brokers" and found.top not in allowed
    ]
    assert not wrong, wrong


def test_large_libraries_are_imported_where_they_are_needed() -> None:
    wrong = [
        where(name, found)
        for name in modules()
        for found in imports(name)
        if found.eager and (found.top in LATE or (found.top in {"typer", "rich"} and name not in FACES))
    ]
    assert not wrong, f"import these inside the functions that use them: {wrong}"


def loaded_by(*names: str) -> set[str]:
    """Return what a fresh interpreter, started in the root, has loaded once it has imported ``names``."""
    script = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "json.dump(list(sys.modules), sys.stdout)\n"
    )
    command = [sys.executable, "-c", script, *names]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout))


def test_importing_omnibus_loads_nothing_large() -> None:
    loaded = loaded_by("omnibus")
    assert not loaded.intersection(HEAVY)
    assert {name for name in loaded if name.startswith("omnibus")} == {"omnibus"}


def test_a_broker_loads_nothing_large() -> None:
    assert not loaded_by("omnibus.brokers.__main__").intersection(HEAVY)


def test_every_module_can_be_imported_and_none_under_its_bare_name() -> None:
    loaded = loaded_by(*modules())
    assert set(modules()) <= loaded
    assert not loaded.intersection({"brokers", "actors", "launch"})
    assert not {"brokers", "actors", "launch"}.intersection(sys.modules)
