"""Watches objects of the API server with kopf, and mirrors them."""
