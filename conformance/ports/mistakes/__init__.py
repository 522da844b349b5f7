"""Known mistakes of ports: what porters get wrong, as the definition with some steps taken otherwise.

A mistake has a scope: the whole model, one stack, one block or one sublayer. It predicts what a port with it returns,
so that it can be told by its results alone.
"""
