"""`make verify-aws`: deploys a scratch stack, and checks the assumptions of this project on AWS itself.

- `check`: a check and its verdict
- `checks`: the checks, by subject
- `scratch`: the resources on which the checks work
- `account`: whose account it is, and which actions the caller may use
- `journal`, `teardown`: the resources of a run, and their removal
- `report`: the table, and the same as JSON and Markdown

docs/verify-aws.md is the page for users.
"""
