"""Merges overlays into a template of CloudFormation.

    python tools/overlay.py TEMPLATE OVERLAY... MERGED
    python tools/overlay.py --built TEMPLATE [OVERLAY...] MERGED    the template that `sam build` would leave
    python tools/overlay.py --self-test    how values are merged, and what SAM makes of overlays/gradual.yaml

Mappings are merged, `null` removes a value, and any other value of an overlay replaces that of the template. A
resource that the template does not have must have a type, so that a renamed one is found. The output Overlays names
the overlays, for tools/before_deploy.py. With `--built`, each function's code is the folder of its name, so that a job
that has a role of AWS takes nothing but the programs from the job that compiled them.
"""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from cloud import ROOT, Json, Template


def computed(value: Any) -> bool:
    """Returns True if CloudFormation computes this value: {"Ref": "A"} has no members to merge."""
    return isinstance(value, dict) and len(value) == 1 and ("Ref" in value or next(iter(value)).startswith("Fn::"))


def merge(base: Json, overlay: Json) -> Json:
    merged = dict(base)
    for name, value in overlay.items():
        below = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and not computed(value):
            merged[name] = merge(below if isinstance(below, dict) and not computed(below) else {}, value)
        else:
            merged[name] = value
    return merged


def read(file: Path) -> Json:
    parsed: Json = yaml.load(file.read_text(), Loader=Template)
    return parsed


def main(template: str, overlays: list[str], merged: str, built: bool = False) -> int:
    parsed = read(Path(template))
    for file in overlays:
        over = read(Path(file))
        for name, resource in over["Resources"].items():
            if name not in parsed["Resources"] and "Type" not in resource:
                print(f"{file}: {template} has no resource {name}", file=sys.stderr)
                return 1
        parsed = merge(parsed, over)
    names = " ".join(Path(file).stem for file in overlays) or "none"
    if "Overlays" in parsed["Outputs"]:
        parsed = merge(parsed, {"Outputs": {"Overlays": {"Value": names}}})
    for name, resource in parsed["Resources"].items():
        if built and resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = name
    Path(merged).parent.mkdir(parents=True, exist_ok=True)
    Path(merged).write_text(yaml.safe_dump(parsed, sort_keys=False))
    return 0


class NoManagedPolicies:
    def load(self) -> Json:
        return {}


def transformed(release: str, **values: str) -> Json:
    """The resources that SAM makes of the gradual template with these parameters."""
    from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

    merged = merge(read(ROOT / "template.yaml"), read(ROOT / "overlays" / "gradual.yaml"))
    merged["Resources"]["Consumer"]["Properties"]["CodeUri"] = "s3://bucket/key"
    parameters = {name: str(p.get("Default", "sandbox")) for name, p in merged["Parameters"].items()}
    resources: Json = transform(merged, parameters | {"Release": release} | values, NoManagedPolicies())["Resources"]
    return resources


def overlay_of(page: Path) -> Json:
    """The resources of the overlay that a page shows."""
    resources: Json = yaml.safe_load(page.read_text().partition("```yaml\n")[2].partition("```")[0])["Resources"]
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
    mine, managed = (overlay_of(ROOT / "docs" / page) for page in ("template.md", "operations.md"))
    row = next(r for r in (ROOT / "docs" / "operations.md").read_text().splitlines() if r.startswith("| [5400 s]"))
    visibility, receives, cap = (cell.split()[0] for cell in row.split("|")[2:5])
    template: Json = {"a": {"b": 1, "c": 2}, "d": {"e": 3}, "f": {"Ref": "G"}}
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "built.yaml"
        main(str(ROOT / "template.yaml"), [], str(built), built=True)
        at = {"Resources": {"Consumer": {"Properties": {"CodeUri": "Consumer"}}}}
        as_built = read(built) == merge(read(ROOT / "template.yaml"), at)
    expected = {
        "mappings are merged": merge(template, {"a": {"b": 4}})["a"] == {"b": 4, "c": 2},
        "null removes": merge(template, {"a": {"b": None}, "h": None}) == template | {"a": {"c": 2}},
        "a computed value replaces a mapping": merge(template, {"a": {"Ref": "G"}})["a"] == {"Ref": "G"},
        "a mapping replaces a computed value": merge(template, {"f": {"b": 1}})["f"] == {"b": 1},
        "the built template differs in the place of the program alone": as_built,
        "the pages name resources": set(mine) | set(managed) <= set(read(ROOT / "template.yaml")["Resources"]),
        "the overlay of docs/operations.md has the values of its table": (
            managed["OrdersQueue"]["Properties"]
            == {"VisibilityTimeout": int(visibility), "RedrivePolicy": {"maxReceiveCount": int(receives)}}
            and managed["Consumer"]["Properties"]["Environment"]["Variables"]["CONSUMER_BACKOFF_CAP"] == f"{cap}m"
        ),
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
    words = [word for word in sys.argv[1:] if word != "--built"]
    if len(words) < 2:
        sys.exit(__doc__)
    sys.exit(main(words[0], words[1:-1], words[-1], built="--built" in sys.argv))
