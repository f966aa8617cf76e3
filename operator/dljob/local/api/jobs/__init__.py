"""Everything under ``/v1/jobs``: what is read, checked, changed and shown there."""
