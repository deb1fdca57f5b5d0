"""The one place where templates are loaded and filled. jinja2 is imported here alone, and only where it is used."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topocheck.model.version import __version__
from topocheck.render.quoting import terminal_text, xml_text

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent.parent / "templates"


@functools.cache
def _environment() -> Environment:
    import jinja2
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return xml_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.globals.update(version=__version__, script=_script, script_hash=_script_hash)
    return environment


def _script() -> Any:
    from markupsafe import Markup

    return Markup((TEMPLATES / "page.js").read_text(encoding="utf-8"))


def _script_hash() -> str:
    """Return the digest by which the page's policy allows its own script, and no other (CSP Level 3, 2.3.1)."""
    digest = hashlib.sha256(str(_script()).encode()).digest()
    return base64.b64encode(digest).decode()


def fill(template: str, **values: Any) -> str:
    """Return a filled template. Text from elsewhere is escaped, and nothing in it acts on a terminal."""
    return terminal_text(_environment().get_template(template).render(**values)).rstrip() + "\n"
