"""The processes of a training: spawned, supervised, signalled, and proven gone."""
