"""The record of what happened in the formats of other programs: traces for Perfetto."""
