"""Merges an overlay into a template of CloudFormation.

    python local/overlay.py TEMPLATE OVERLAY MERGED
    python local/overlay.py --self-test    what SAM makes of template.yaml and examples/gradual.overlay.yaml

Mappings are merged, and other values of the overlay replace those of the template. A resource that the template does
not have must have a type, so that a resource that was renamed is found.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from cloud import ROOT, Template

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


class NoManagedPolicies:
    def load(self) -> Json:
        return {}


def transformed(release: str, **values: str) -> Json:
    """The resources that SAM makes of the gradual template with these parameters."""
    from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

    files = (ROOT / "template.yaml", ROOT / "examples" / "gradual.overlay.yaml")
    template, overlay = (yaml.load(file.read_text(), Loader=Template) for file in files)
    merged = merge(template, overlay)
    merged["Resources"]["Consumer"]["Properties"]["CodeUri"] = "s3://bucket/key"
    parameters = {name: str(p.get("Default", "sandbox")) for name, p in merged["Parameters"].items()}
    resources: Json = transform(merged, parameters | {"Release": release} | values, NoManagedPolicies())["Resources"]
    return resources


def self_test() -> int:
    """Each release is a version, also if only a parameter changed, and the mapping follows the alias."""
    logging.disable(logging.WARNING)
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

    def versions(resources: Json) -> set[str]:
        return {name for name, r in resources.items() if r["Type"] == "AWS::Lambda::Version"}

    first, again, second = (
        transformed("1763900001"),
        transformed("1763900001"),
        transformed("1763900002", MemorySize="512"),
    )
    mapped = first["OrdersEventSource"]["Properties"]["FunctionName"].get("Ref")
    aliased = first.get(mapped, {})
    steps = aliased.get("UpdatePolicy", {}).get("CodeDeployLambdaAliasUpdate")
    expected = {
        "the same release is the same version": versions(first) == versions(again),
        "another release is another version": len(versions(first) | versions(second)) == 2,
        "the mapping names the alias": aliased.get("Type") == "AWS::Lambda::Alias",
        "CodeDeploy moves the alias": steps is not None,
    }
    for what, holds in expected.items():
        if not holds:
            print(f"overlay: not so: {what}", file=sys.stderr)
    return 0 if all(expected.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
