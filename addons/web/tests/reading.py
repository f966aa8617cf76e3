"""The data that is embedded in a page."""

import json
from typing import Any

BEGIN = '<script type="application/json" id="data">'


def embedded(page: str) -> Any:
    return json.loads(page.partition(BEGIN)[2].partition("</script>")[0])


def fours(numbers):
    return zip(*[iter(numbers)] * 4, strict=True)


def gpu_seconds(data: Any) -> dict[str, float]:
    """Add up the spans of all GPUs, by job."""
    sums = {job["name"]: 0.0 for job in data["jobs"]}
    for lane in (lane for node in data["nodes"] for lane in node["lanes"]):
        for begin, end, number, _ in fours(lane["spans"]):
            sums[data["jobs"][number]["name"]] += end - begin
    return sums
