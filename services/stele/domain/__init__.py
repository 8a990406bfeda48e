"""The pure core: images, facts, commands, and the functions between them.

``decide(image, envelope)`` says what would become true, ``evolve(image, epoch)`` makes it true.
Nothing here does input or output, reads a clock, or draws a random number.
"""
