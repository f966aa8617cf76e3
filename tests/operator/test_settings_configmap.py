"""The operator shows its settings to people."""

import json

from dljob.operator.reporting.configmap_writing import settings_text
from dljob.operator.settings import load_settings


def test_settings_are_shown_with_origin_and_without_credentials():
    loaded = load_settings(None, ["store=mongodb://ada:secret@db/dljob", "policy=fifo"])
    text = settings_text(loaded.described())
    shown = {each["name"]: each for each in json.loads(text)}
    assert "secret" not in text
    assert (shown["policy"]["value"], shown["policy"]["origin"]) == ("fifo", "--policy")
    assert shown["pool.label"]["origin"] == "default"
    assert "GPUs are shared out" in shown["policy"]["description"]
