"""The import rules: layers point up only, each dependency has one home, and light entry points stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dagrl"

#: From the top down; a package imports itself and what stands above it.
LAYERS = [
    "errors", "storage", "zoo", "data", "ops", "rewards", "graph", "compiler", "controller", "engines", "workers",
    "nodes", "executor", "contracts", "trainer", "tui", "cli",
]  # fmt: skip
#: Beyond the order: nodes see role protocols of `graph` only.
FORBIDDEN = {("nodes", "workers"), ("nodes", "engines"), ("nodes", "compiler"), ("nodes", "controller")}
#: Third-party packages that only these layers may import.
HOMES = {
    "ray": {"controller", "executor"},
    "vllm": {"engines"},
    "aiohttp": {"engines"},
    "rich": {"tui", "cli"},
    "fsspec": {"storage"},
    "pyarrow": {"storage"},
    "networkx": {"graph"},
    "transformers": {"engines", "workers"},
    "tensordict": {"data"},
    "click": {"cli"},
}
#: Scripts that nothing else imports: each makes a packaged model.
SCRIPTS = {PACKAGE / "zoo" / f"make_{name}.py" for name in ("expert", "tiny")}


def _sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path not in SCRIPTS]


def _layer(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def _imports(path: Path, *, typing_only: bool) -> list[tuple[int, str]]:
    """(line, module) of every import, lazy ones included; those under TYPE_CHECKING only if asked for."""
    found: list[tuple[int, str]] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not typing_only:
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "dagrl" else [node.module]
            found.extend((node.lineno, name or "") for name in names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def _internal(path: Path) -> list[tuple[int, str]]:
    modules = [(line, name.split(".")) for line, name in _imports(path, typing_only=True)]
    return [(line, parts[1]) for line, parts in modules if parts[0] == "dagrl" and len(parts) > 1]


def test_every_package_is_a_layer() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert packages <= set(LAYERS)


@pytest.mark.parametrize("path", [p for p in _sources() if _layer(p) in LAYERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_up_only(path: Path) -> None:
    layer = _layer(path)
    for line, target in _internal(path):
        if target not in LAYERS:
            continue
        where = f"{path.relative_to(ROOT)}:{line}"
        assert LAYERS.index(target) <= LAYERS.index(layer), f"{where}: {layer} imports {target}, which lies below it"
        assert (layer, target) not in FORBIDDEN, f"{where}: {layer} must not import {target}"


def test_dependencies_stay_at_home() -> None:
    for path in _sources():
        for line, name in _imports(path, typing_only=True):
            homes = HOMES.get(name.split(".")[0])
            assert homes is None or _layer(path) in homes, f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_the_order_has_no_cycle_between_modules() -> None:
    """Inside a layer too: a module never imports one that imports it back."""
    import networkx as nx

    graph = nx.DiGraph()
    for path in _sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for _, name in _imports(path, typing_only=False):
            graph.add_edge(module, name)
    loops = [loop for loop in nx.strongly_connected_components(graph) if len(loop) > 1]
    assert not loops


def _loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"ray", "vllm", "transformers", "tensordict"}


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import dagrl", HEAVY | {"torch", "numpy", "networkx", "pydantic", "jaxtyping"}),
        ("import dagrl.compiler.plan", HEAVY | {"torch", "numpy", "networkx", "pydantic", "jaxtyping"}),
        ("import dagrl.nodes", HEAVY),
        ("from dagrl.compiler import compile_pipelines", HEAVY | {"torch"}),
        ("from dagrl.cli.main import cli\ncli.main(['--help'], standalone_mode=False)", HEAVY | {"torch"}),
        ("from dagrl.cli.main import cli\ncli.main(['plan', 'pipelines/grpo.py'], standalone_mode=False)", HEAVY),
        (
            "from dagrl.cli.main import cli\ncli.main(['plan', 'pipelines/grpo.py', '--json'], standalone_mode=False)",
            HEAVY,
        ),
        (
            "from dagrl.cli.main import cli\n"
            "cli.main(['plan', 'pipelines/grpo.py', '--executor', 'ray'], standalone_mode=False)",
            HEAVY,
        ),
    ],
    ids=["dagrl", "a plan to read", "nodes", "compiler", "help", "plan", "plan --json", "plan for ray"],
)
def test_light_entry_points_load_nothing_heavy(code: str, absent: set[str]) -> None:
    assert not _loaded_after(code) & absent
