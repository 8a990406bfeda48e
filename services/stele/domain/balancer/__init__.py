"""The rules of the tablet balancer: from an image and reported loads to proposals."""
