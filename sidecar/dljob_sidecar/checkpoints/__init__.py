"""Checkpoints: requesting, confirming, recording and checking them."""
