"""Tracing a whole Python program without touching it: ``gwatch trace -- python script.py``.

The program runs as its own process, started by the interpreter it names. A folder in front of its
``PYTHONPATH`` holds a ``sitecustomize`` that gets gwatch ready in it and in every Python process it starts.
"""
