"""Jobs in containers of this machine: how podman and docker run them, and the proof that one is gone."""
