"""Modules of user files travel to the workers by value: these have no such file to import."""

import site
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from ray import cloudpickle

from dagrl.errors import WorkerEnvironmentError


def ship_by_value(module: ModuleType) -> None:
    """From now on send the functions and classes of this module whole, instead of its name.

    Raises:
        WorkerEnvironmentError: when the module is not in ``sys.modules`` under its name.
    """
    if sys.modules.get(module.__name__) is not module:
        raise WorkerEnvironmentError(
            f"module `{module.__name__}` cannot be sent by value: put it into sys.modules before it runs"
        )
    cloudpickle.register_pickle_by_value(module)


def ship_user_modules() -> None:
    """Send every loaded module by value that is neither dagrl's nor installed: a worker could not import it."""
    installed = {str(Path(path).resolve()) for path in (*_installed_folders(), Path(__file__).parent.parent)}
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__")
        if isinstance(file, str) and sys.modules.get(module.__name__) is module:
            folders = {str(folder) for folder in Path(file).resolve().parents}
            if not folders & installed:
                ship_by_value(module)


def _installed_folders() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return [*map(sysconfig.get_path, names), site.getusersitepackages()]
