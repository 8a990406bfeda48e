"""An operator of the live simulator waits for its request although its image is behind the answer."""

import asyncio

from stele.domain.evolve import evolve
from stele.domain.image import EMPTY, Image
from stele.domain.names import UNFINISHED
from stele_simulator.live.command_sender import see_finished
from tests.domain.history import three_nodes


async def test_request_missing_in_the_image_has_not_ended() -> None:
    images = [EMPTY]
    for epoch in three_nodes()[0].epochs:
        images.append(evolve(images[-1], epoch))
    asked = next(at for at, image in enumerate(images) if [*image.requests.unfinished()])
    (request,) = images[asked].requests.unfinished()
    ended = next(
        at
        for at, image in enumerate(images)
        if at > asked and _has_ended(image, request.request_id)
    )
    shown = [images[asked - 1]]
    waiting = asyncio.create_task(see_finished(lambda: shown[0], request.request_id))
    for seen in (images[asked - 1], images[asked]):
        shown[0] = seen
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
    shown[0] = images[ended]
    assert await waiting


def _has_ended(image: Image, request_id: str) -> bool:
    request = image.request(request_id)
    return request is not None and request.status not in UNFINISHED
