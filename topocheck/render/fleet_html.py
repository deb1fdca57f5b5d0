"""The fleet as one HTML page that stands alone: no script, nothing fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import topocheck
from topocheck.render.fleet import LEFT_OUT, verdict
from topocheck.render.page import clean
from topocheck.render.words import plural

if TYPE_CHECKING:
    from topocheck.compare.types import Fleet

MAX_NODES = 200

_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #1b1b1b }
table { border-collapse: collapse; margin: .6em 0 1.4em; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25em .7em .25em 0; border-bottom: 1px solid #ddd }
th { font-weight: 600; color: #555 } code { font-size: 13px; color: #555; overflow-wrap: anywhere }
h2 { margin-top: 1.8em; font-size: 1.15em }
.fail { color: #b00020 } .warn { color: #8a5a00 } .unknown { color: #7a1fa2 }
details { margin: .2em 0 } .dim { color: #666 }
</style></head><body>
<h1>{{ title }}</h1>
{% for k in fleet.kinds %}
<h2>{{ k.nodes }} of {{ k.name }}</h2>
<table><tr><th>group</th><th>nodes</th><th></th></tr>
{% for g in k.groups %}<tr><td><code>{{ g.fingerprint[:8] }}</code></td><td>{{ g.nodes|length }}</td>
<td>{{ names(g.nodes) }}</td></tr>
{% endfor %}</table>
{% if k.mixed %}<table><tr><th>mixed</th><th>values</th></tr>
{% for m in k.mixed %}<tr><td>{{ m.device }} {{ m.field }}</td>
<td>{% for v, n in m.values %}{{ v }} ({{ n }}){{ ", " if not loop.last }}{% endfor %}</td></tr>
{% endfor %}</table>{% endif %}
{% endfor %}
{% if fleet.odd %}<h2>Unlike most of their kind: {{ fleet.odd|length }}</h2>
<table><tr><th>node</th><th>what</th><th>value</th><th>usual</th><th>where</th></tr>
{% for o in fleet.odd %}{% for d in o.differences %}
<tr><td>{{ o.name if loop.first }}</td><td>{{ d.device }}: {{ d.field }}</td>
<td class="{{ 'unknown' if not d.told }}">{{ d.value }}</td><td>{{ d.usual }}</td>
<td><code>{{ d.path }}</code></td></tr>
{% endfor %}{% endfor %}</table>{% endif %}
{% if fleet.findings %}<h2>Findings of the checks</h2>
<table><tr><th>state</th><th>check</th><th>finding</th><th>nodes</th></tr>
{% for f in fleet.findings %}<tr><td class="{{ f.state }}">{{ f.state }}</td><td>{{ f.id }}</td>
<td>{{ f.subject }}: {{ f.title }}</td><td>{{ f.nodes|length }}: {{ names(f.nodes) }}</td></tr>
{% endfor %}</table>{% endif %}
{% if fleet.rails %}<h2>Rails</h2><table><tr><th>NIC</th><th>network</th><th>nodes</th></tr>
{% for r in fleet.rails %}<tr><td>{{ r.label }} ({{ r.nic }})</td><td>{{ r.network }}</td><td>{{ r.nodes }}</td></tr>
{% endfor %}</table>{% endif %}
{% for heading, counts in (("Software", fleet.software), ("NCCL settings", fleet.settings)) %}{% if counts %}
<h2>{{ heading }}</h2><table>
{% for c in counts %}<tr><td>{{ c.name }}</td>
<td class="{{ 'warn' if c.values|length > 1 }}">{% for v, n in c.values %}{{ v }} ({{ n }}){{ ", " if not loop.last }}
{% endfor %}</td></tr>{% endfor %}</table>{% endif %}{% endfor %}
{% if fleet.changes is not none %}<h2>Changed since then</h2>
<table><tr><th>node</th><th>what</th><th>was</th><th>is</th></tr>
{% for c in fleet.changes %}{% if not c.differences %}<tr><td>{{ c.name }}</td><td>{{ c.what }}</td></tr>{% endif %}
{% for d in c.differences %}<tr><td>{{ c.name if loop.first }}</td><td>{{ d.device }}: {{ d.field }}</td>
<td>{{ d.usual }}</td><td>{{ d.value }}</td></tr>{% endfor %}{% endfor %}</table>{% endif %}
{% if fleet.bad_files %}<h2>Not read</h2><table>
{% for b in fleet.bad_files %}
<tr><td><code>{{ b.file }}</code></td><td>{{ b.why }}</td></tr>{% endfor %}
</table>{% endif %}
{% if fleet.older_files %}<h2>Left out, {{ left_out }}</h2>
<p>{% for f in fleet.older_files %}<code>{{ f }}</code> {% endfor %}</p>{% endif %}
<p class="dim">topocheck {{ version }}</p>
</body></html>
"""


def fleet_html(fleet: Fleet) -> str:
    """Return the fleet as HTML. Everything read from elsewhere is escaped.

    Raises:
        ImportError: jinja2 is not installed.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    title = f"{plural(fleet.nodes, 'node')}, {verdict(fleet)}"
    page = environment.from_string(_PAGE).render(
        fleet=fleet, title=title, names=_names, version=topocheck.__version__, left_out=LEFT_OUT
    )
    return clean(page) + "\n"


def _names(nodes: tuple[str, ...]) -> str:
    more = len(nodes) - MAX_NODES
    return " ".join(nodes[:MAX_NODES]) + (f" and {more} more" if more > 0 else "")
