"""The objects of the API server as they change: kopf's watches, the mirror, and the parts of objects that it keeps."""
