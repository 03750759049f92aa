"""Packages that only language models need, imported where they are needed."""

from importlib import import_module
from typing import Any


def need(package: str, user: str) -> Any:
    """The module `package`, for `user`.

    Raises:
      ImportError: it is not installed; one line says how it would be.

    >>> need("json", "this example").dumps([1])
    '[1]'
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        root = package.split(".")[0]
        if error.name != root:
            raise
        message = f'{user} needs the package {root}: pip install "rljax[llm]"'
        raise ImportError(message) from None
