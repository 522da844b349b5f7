"""The three implementations are mirror images: same files, same names, same order, same signatures.

And arrows point one way: no implementation loads another's framework, or another implementation.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Set
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.helpers import PACKAGES, REFERENCE, Implementation

ROOT = Path(__file__).parents[2]
PORTS = PACKAGES[1:]

PORT_KEYWORDS = {
    "torch_impl": {"device", "engine", "attention_function"},
    "jax_impl": {"engine", "attention_function"},
}
"""Keyword-only parameters that a port may have beyond the definition's: where to put a result that no argument places,
which of its algorithms to take, and what to call in the place of `attention`."""

PORT_NAMES = {"Adam", "explain_engine", "explain_layer_norm_engine"}
"""Public names that a port may have beyond the definition's."""

ON_RANKS = {"distributed.py", "distributed_experts.py", "distributed_models.py"}
PORT_FILES = {"torch_impl": {*ON_RANKS, "huggingface.py", "ranks.py"}, "jax_impl": ON_RANKS}
"""Files that a port may have beside them: for several ranks, and for a library of its framework."""

GROUPS = {"group", "axis_name"}
"""What a function on several ranks calls them."""

CORES = {"attention_steps": "reference_attention", "layer_norm_steps": "reference_layer_norm"}
"""By file, what an operation computes once its arguments are checked, and before its result is rounded."""

ARRAYS = ("np.ndarray", "torch.Tensor", "Tensor", "jax.Array", "Array")


def is_gradient(name: str) -> bool:
    return name.endswith(("_vjp", "Gradients"))


def public_names(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if not is_gradient(name) and name not in PORT_NAMES]


def file_of(operation: object) -> str:
    return operation.__module__.partition(".")[2] + ".py"


def files_of(package: str) -> list[str]:
    """What one studies: the files beside `engines/`, without gradients and the tape that they are written with."""
    files = [file for file in (ROOT / package).glob("*.py") if not is_gradient(file.stem)]
    return sorted(file.name for file in files if file.stem != "tape")


def functions_in_order(package: str, file: str) -> list[str]:
    tree = ast.parse((ROOT / package / file).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def common_annotation(annotation: object) -> str:
    """The annotation's text, with every framework's array written the same way."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    for array in ARRAYS:
        text = text.replace(f"[{array},", "[array,").replace(f"[{array}]", "[array]")
    return text


def parameters(function: Callable[..., object], extra: Set[str] = frozenset()) -> list[tuple[str, str, object, str]]:
    return [
        (parameter.name, str(parameter.kind), parameter.default, common_annotation(parameter.annotation))
        for parameter in inspect.signature(function).parameters.values()
        if not (parameter.name in extra and parameter.kind is parameter.KEYWORD_ONLY)
    ]


def result(function: Callable[..., object]) -> str:
    return common_annotation(inspect.signature(function).return_annotation)


OPERATIONS = public_names(REFERENCE.subject.module)


def test_same_public_names(implementation: Implementation) -> None:
    assert public_names(implementation.subject.module) == OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_same_signature_in_the_same_file(implementation: Implementation, operation: str) -> None:
    own, defined = getattr(implementation, operation), getattr(REFERENCE, operation)
    assert parameters(own, PORT_KEYWORDS.get(implementation.package, set())) == parameters(defined)
    assert (result(own), file_of(own)) == (result(defined), file_of(defined))


@pytest.mark.parametrize(("file", "name"), CORES.items())
def test_same_core(implementation: Implementation, file: str, name: str) -> None:
    """Engines call it, and it is studied side by side."""
    own, defined = (
        getattr(importlib.import_module(f"{package}.{file}"), name)
        for package in (implementation.package, REFERENCE.package)
    )
    assert (parameters(own), result(own)) == (parameters(defined), result(defined))


@pytest.mark.parametrize("file", sorted(ON_RANKS))
@pytest.mark.rule("DIST-1", "DIST-6", "DIST-7")
def test_same_signatures_on_ranks(file: str) -> None:
    """Both ports have the same; an operation of the definition has its parameters, and the ranks after them."""
    ports = [importlib.import_module(f"{package}.{Path(file).stem}") for package in PORTS]
    assert ports[0].__all__ == ports[1].__all__
    for name in ports[0].__all__:
        functions = [getattr(port, name) for port in ports]
        own, other = (
            [("the ranks",) if one[0] in GROUPS else one for one in parameters(function)] for function in functions
        )
        assert (own, result(functions[0])) == (other, result(functions[1])), name
        if name in OPERATIONS:  # annotations may differ: images are not shared by ranks
            defined = parameters(getattr(REFERENCE, name))
            assert [one[:3] for one in own[:-1]] == [one[:3] for one in defined], name


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_every_argument_in_order(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        function = getattr(module, name)
        if inspect.isfunction(function):
            section = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
            lines = re.findall(r"^    ([*\w]+(?:, [*\w]+)*): \S", section, re.MULTILINE)
            named = [argument.lstrip("*") for line in lines for argument in line.split(", ")]
            assert named == list(inspect.signature(function).parameters), name


@pytest.mark.parametrize("package", PORTS)
def test_same_files(package: str) -> None:
    assert {*files_of(package)} - PORT_FILES[package] == {*files_of(REFERENCE.package)}
    assert {file.parent.name for file in (ROOT / package).glob("*/*.py")} == {"engines"}


@pytest.mark.parametrize("package", PORTS)
def test_same_functions_in_the_same_files_and_order(package: str) -> None:
    """Of all functions that the definition has too, helpers included; a port may have further helpers."""
    defined = {name for file in files_of(REFERENCE.package) for name in functions_in_order(REFERENCE.package, file)}
    for file in files_of(REFERENCE.package):
        shared = [name for name in functions_in_order(package, file) if name in defined]
        expected = [name for name in functions_in_order(REFERENCE.package, file) if name in shared]
        assert shared == expected, file


@pytest.mark.rule("ATT-12")
def test_every_operation_that_has_gradients_has_them_beside_it() -> None:
    constant = {"alibi_bias", "materialize", "rotary_frequencies", "sinusoidal_positions"}
    constant |= {"Model", "load", "load_pretrained", "plain_self_attention", "restore", "save"}
    constant |= {"beam_search", "choose", "decode_step", "greedy", "sample", "start"}
    constant |= {"adam_start", "adam_step", "clip_by_global_norm", "sgd_start", "sgd_step"}
    constant |= {"cosine_decay", "inverse_square_root", "linear_warmup"}
    constant |= {"embedding_default", "linear_default", "xavier_uniform"}
    gradients = {name.removesuffix("_vjp") for name in REFERENCE.__all__ if name.endswith("_vjp")}
    assert gradients == set(OPERATIONS) - constant


FORBIDDEN = {
    "specification": ("torch", "jax", "jaxlib", "reference_numpy", "torch_impl", "jax_impl", "conformance"),
    "reference_numpy": ("torch", "jax", "jaxlib", "torch_impl", "jax_impl", "conformance"),
    "torch_impl": ("jax", "jaxlib", "reference_numpy", "jax_impl", "conformance"),
    "jax_impl": ("torch", "reference_numpy", "torch_impl", "conformance"),
    "conformance": ("torch", "jax", "jaxlib", "torch_impl", "jax_impl"),
}


@pytest.mark.parametrize("package", [package for package in FORBIDDEN if package not in PORTS])
def test_loads_no_more_than_it_should(package: str) -> None:
    """For the ports this is a part of `test_importing_changes_nothing_global` in the files beside this one."""
    program = f"import sys, {package}; print(*(name for name in {FORBIDDEN[package]} if name in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.split() == []


@pytest.mark.parametrize("package", [package for package in FORBIDDEN if package != "conformance"])
def test_imports_no_more_than_it_should_anywhere(package: str) -> None:
    """Imports inside functions too, which loading a package does not show."""
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            roots = {name.split(".")[0] for name in names}
            assert roots.isdisjoint(FORBIDDEN[package]), file.relative_to(ROOT)
