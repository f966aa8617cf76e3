"""The record in the formats of other programs: traces for Perfetto."""
