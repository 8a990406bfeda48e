"""The steps, one file each: ``async def run(scene)`` does it, notes it and checks what it claims."""
