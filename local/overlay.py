"""Merges an overlay into a template of CloudFormation.

    python local/overlay.py TEMPLATE OVERLAY MERGED

Mappings are merged, and other values of the overlay replace those of the template. A resource that the template does
not have must have a type, so that a resource that was renamed is found.
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from stack import Template

Json = dict[str, Any]


def merge(base: Json, overlay: Json) -> Json:
    merged = dict(base)
    for name, value in overlay.items():
        below = merged.get(name)
        merged[name] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def main(template: str, overlay: str, merged: str) -> int:
    parsed, over = (yaml.load(Path(file).read_text(), Loader=Template) for file in (template, overlay))
    for name, resource in over["Resources"].items():
        if name not in parsed["Resources"] and "Type" not in resource:
            print(f"{overlay}: {template} has no resource {name}", file=sys.stderr)
            return 1
    Path(merged).parent.mkdir(exist_ok=True)
    Path(merged).write_text(yaml.safe_dump(merge(parsed, over), sort_keys=False))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
