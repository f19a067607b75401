"""Fails if the dependency tree has a second TLS or HTTP stack."""

import subprocess
import sys
from collections import Counter

ONCE = ("rustls", "hyper", "ring")
NEVER = ("openssl", "openssl-sys", "native-tls", "aws-lc-rs", "aws-lc-sys")

tree = ["cargo", "tree", "--locked", "--all-features", "-e", "normal", "--prefix", "none", "--format", "{p}"]
lines = subprocess.run(tree, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
packages = {tuple(line.split()[:2]) for line in lines if line}
versions = Counter(name for name, _version in packages)

problems = [f"{versions[name]} versions of {name}, not 1" for name in ONCE if versions[name] != 1]
problems += [f"{name} is in the tree" for name in NEVER if versions[name]]
if problems:
    sys.exit("one TLS stack, one HTTP stack: " + "; ".join(problems) + " (see `cargo tree -i NAME`)")
