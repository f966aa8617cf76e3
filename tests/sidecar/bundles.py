"""``python bundles.py BUNDLE COMMAND …``: run the command in the container of a runc bundle."""

import json
import os
import sys

bundle, *command = sys.argv[1:]
with open(f"{bundle}/config.json") as file:  # noqa: PTH123 - so that little is imported
    config = json.load(file)
config["process"]["args"] = command
with open(f"{bundle}/config.json", "w") as file:  # noqa: PTH123
    json.dump(config, file)
name = f"dljob-test-{os.getpid()}"
os.execlp("runc", "runc", "run", "--bundle", bundle, name)  # noqa: S606
