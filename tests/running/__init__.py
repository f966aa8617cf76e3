"""
Runs the tests in parts, and always comes to an end: ``make test``, ``make deep`` and each part of it.

``python -m tests.running PART…`` (see :mod:`tests.running.__main__`) runs with any Python from 3.11 on, before ``.venv`` exists.
:mod:`~tests.running.parts` says what a part is, :mod:`~tests.running.supervising` runs it, :mod:`~tests.running.keeping` holds the
processes of one step, and :mod:`~tests.running.watching` is the plugin of pytest that limits each test.
"""
