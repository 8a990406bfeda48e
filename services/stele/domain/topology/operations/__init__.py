"""The kinds of operations, one file each; ``table`` lists them."""
