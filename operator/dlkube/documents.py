"""The documents of the API server, as they are read and made here."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
"""A document, or a part of one, that is only read."""
JsonObject = dict[str, Any]
"""A document that is being made, or was just parsed."""
