"""The version of Onbeat that a report names."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """Return the installed version; `0.0.0+unknown` in a checkout that is not installed."""
    try:
        return installed("onbeat")
    except PackageNotFoundError:
        return "0.0.0+unknown"
