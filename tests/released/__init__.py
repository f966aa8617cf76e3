"""A release, installed part by part in bare places: ``make release-check``."""
