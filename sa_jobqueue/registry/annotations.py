"""Reads the annotations and signatures of functions of the application, with every supported Python.

From Python 3.14 on annotations are evaluated when they are read, so that each reader may meet a name that only type checkers
know (PEP 649). Before, only annotations that are text have such names.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib


class AnnotationError(Exception):
    """An annotation cannot be evaluated. The text names it, and the change to make."""

    def __init__(self, error: Exception) -> None:
        reason = f"an annotation cannot be evaluated ({error!r})"
        if isinstance(error, NameError):
            reason = f"the annotation {error.name!r} cannot be found"
        super().__init__(
            f"{reason}; declare or import it at the top of its module, not under `if TYPE_CHECKING:`, because annotations "
            "are read at run time"
        )


def signature(func: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature without evaluating its annotations. Raises: as `inspect.signature`."""
    if sys.version_info >= (3, 14):
        return inspect.signature(func, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(func)


def type_hints(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the evaluated annotations of a function, by parameter and `return`. Raises: AnnotationError."""
    try:
        return typing.get_type_hints(func, include_extras=True)
    except Exception as error:  # what evaluating an expression of the application raises
        raise AnnotationError(error) from error


def return_hint(func: Callable[..., Any]) -> Any:
    """Return the evaluated annotation of a function's result; Any without one. Its parameters are not evaluated.

    Raises: AnnotationError.
    """
    if sys.version_info >= (3, 14):
        annotations = annotationlib.get_annotations(func, format=annotationlib.Format.FORWARDREF)
    else:
        annotations = func.__annotations__
    if "return" not in annotations:
        return Any
    # A function with the annotation of the result alone, for its names are those of the module and the type parameters.
    alone = types.FunctionType(_nothing.__code__, inspect.unwrap(func).__globals__)
    alone.__annotations__ = {"return": annotations["return"]}
    if sys.version_info >= (3, 12):
        alone.__type_params__ = func.__type_params__
    return type_hints(alone)["return"]


def _nothing() -> None: ...
