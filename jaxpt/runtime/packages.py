"""Versions of installed packages, and the command that installs an extra of jaxpt."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlparse

_PACKAGE = Path(__file__).resolve().parents[1]


def version(name: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    """The command that installs an extra; it fits how jaxpt itself is installed.

    jaxpt is on no registry, so that `pip install 'jaxpt[plan]'` would find nothing.

    Args:
      extra: its name in pyproject.toml.

    Returns:
      In a checkout `pip install -e '.[plan]'`, with its path where that is not the current directory; otherwise with
      the URL or file that jaxpt was installed from, or the extra's packages alone where that is not known.
    """
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file():
        place = "." if Path.cwd() == checkout else str(checkout)
        return f"pip install -e '{place}[{extra}]'"
    url = _origin()
    if url.startswith("file:"):
        return f"pip install {shlex.quote(f'{unquote(urlparse(url).path)}[{extra}]')}"
    if url:
        return f"pip install {shlex.quote(f'jaxpt[{extra}] @ {url}')}"
    return " ".join(["pip install", *map(shlex.quote, _requirements(extra))])


def _requirements(extra: str) -> list[str]:
    """The packages of an extra, as the metadata of the installed jaxpt have them; the extra itself without them."""
    try:
        requirements = importlib.metadata.requires("jaxpt") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    marked = [line.partition(";") for line in requirements]
    mine = [
        package.strip() for package, _, marker in marked if marker.replace("'", '"').strip() == f'extra == "{extra}"'
    ]
    return mine or [f"jaxpt[{extra}]"]


def _origin() -> str:
    """The URL that jaxpt was installed from, as PEP 610 records it; "" where it does not."""
    try:
        text = importlib.metadata.distribution("jaxpt").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""
    recorded = json.loads(text or "{}")
    version = recorded.get("vcs_info", {})
    prefix, suffix = (f"{version['vcs']}+", f"@{version['commit_id']}") if version else ("", "")
    return f"{prefix}{recorded['url']}{suffix}" if "url" in recorded else ""
