"""
What a training program may import to work with DLJob: :mod:`dljob.training`, and nothing else.
"""
