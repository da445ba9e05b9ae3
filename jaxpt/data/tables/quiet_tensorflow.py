"""TensorFlow as jaxpt imports it: on the CPU alone, silent, and without Keras.

TensorFlow prepares data. It must take neither an accelerator nor its memory, and has nothing to say to the user. Keras,
which it would import with scikit-learn and Matplotlib, is a third of the import's time, and nothing here uses it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from jaxpt.runtime import process

TRACING = threading.RLock()
"""Held where TensorFlow traces Python functions, as several threads prepare records and batches. AutoGraph parses their
source, and Python before 3.13 counts the parser's depth for all threads together: `SystemError: AST constructor
recursion depth mismatch`."""

_LAYERS = "tensorflow_text.python.keras"
_LEGACY = "TF_USE_LEGACY_KERAS"


@functools.cache
def tensorflow() -> ModuleType:
    """TensorFlow, imported when it is first needed; it takes no accelerator.

    Returns:
      The module. Its `keras` is imported once somebody uses it.

    Raises:
      UserError: the system gives the process too little memory for it.
    """
    process.check_limits()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # it prints that it cannot do integers: we have nothing else
    with quietly():
        import tensorflow as tf

        with contextlib.suppress(RuntimeError):  # it runs already: whoever started it chose its devices
            for kind in ("GPU", "TPU"):
                tf.config.set_visible_devices([], kind)
    return tf


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within it, imports of TensorFlow and of what stands on it write nothing and leave Keras for later.

    TensorFlow's C++ side writes before any of its log settings is read: only the descriptor itself silences it.
    """
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        with _without_keras():
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """TensorFlow imports Keras for its optimizers unless told to use the package tf_keras and that is not there.

    TensorFlow Text subclasses Keras's layers: those of its modules run when they are used.
    """
    chosen = os.environ.get(_LEGACY)
    if chosen is None:
        os.environ[_LEGACY] = "1"
    sys.meta_path.insert(0, _LayersLater)
    try:
        yield
    finally:
        sys.meta_path.remove(_LayersLater)
        if chosen is None:
            del os.environ[_LEGACY]


class _LayersLater:
    """Finds TensorFlow Text's Keras layers, and runs them when somebody asks for one of their names.

    `importlib.util.LazyLoader` runs a module at any attribute: at `__file__`, for which `inspect` asks every module.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == _LAYERS else None
        if spec and spec.loader:
            spec.loader = cls(spec.loader)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def when_used(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            del module.__getattr__
            self._loader.exec_module(module)
            return getattr(module, name)

        module.__getattr__ = when_used
