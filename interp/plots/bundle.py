"""circuitsvis' JavaScript, read as a file from the installed package and made safe to stand in a page.

The package itself is never imported (it would load torch) and its `_repr_html_` never called (it asks the network on
every show). Props are JSON in a `<script type="application/json">`; nothing in them can end the element.
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from interp.registry import UserError

PLACE = ("dist", "cdn", "iife.js")


@cache
def script() -> str:
    """The bundle's source: sets the global `CircuitsVis`. UserError where the package has no such file."""
    spec = importlib.util.find_spec("circuitsvis")
    path = Path(*spec.submodule_search_locations, *PLACE) if spec and spec.submodule_search_locations else None
    if path is None or not path.is_file():
        raise UserError(f"attention views need circuitsvis with its {'/'.join(PLACE)}: pip install circuitsvis")
    source = path.read_text(encoding="utf-8")
    # an address for debuggers only, and the three things that end a script element or open a comment in it
    source = re.sub(r"^//# sourceMappingURL=.*$", "", source, flags=re.MULTILINE)
    return re.sub(r"<(?=/script|script|!--)", r"\\x3c", source, flags=re.IGNORECASE)


def embedded(value: Any) -> str:
    """JSON that may stand inside `<script>` in HTML: no `<`, `>`, `&`, U+2028 or U+2029 is left as itself.

    >>> embedded({"token": "</script>"})
    '{"token":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
