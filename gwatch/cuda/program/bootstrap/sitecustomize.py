"""Runs at the start of every Python process of a program traced by ``gwatch trace``, because this folder is in
front of its PYTHONPATH. Gets gwatch ready, then runs the sitecustomize that this one hides, if there is one.

gwatch is loaded from where this file lies, without its folder on sys.path: that may be another environment's
site-packages, whose other packages are none of the program's business."""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _hidden() -> None:
    """Run the environment's own sitecustomize."""
    import importlib.machinery

    path = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _gwatch() -> None:
    """Import the gwatch that this file belongs to."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
    place = os.path.join(root, "__init__.py")
    spec = importlib.util.spec_from_file_location("gwatch", place, submodule_search_locations=[root])
    if spec is None or spec.loader is None:
        raise ImportError(f"no gwatch at {root}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gwatch"] = module
    spec.loader.exec_module(module)


if "GWATCH_TRACE" in os.environ:
    try:
        _gwatch()
        from gwatch.cuda.program.start import begin

        begin()
    except Exception as error:  # the program must run whatever happens to the tool beside it
        sys.stderr.write(f"gwatch: [bootstrap] not tracing this process: {type(error).__name__}: {error}\n")
_hidden()
