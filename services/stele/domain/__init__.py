"""The pure core: images, facts, commands, and the functions between them.

``decide(image, envelope)`` returns the facts of a command, ``evolve(image, epoch)`` applies them.
The core does no input or output, reads no clock, and draws no random numbers (docs/design.md, rule
15).
"""
