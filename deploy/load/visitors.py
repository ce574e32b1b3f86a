"""Users who come and go quickly, in a process of their own: python -m deploy.load.visitors URL TOKEN SECONDS COUNT

The media server's client ends its process a while after a connection that was given up half-way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from deploy.load.user import User


async def visit(url: str, token: str, delay: float, seconds: float) -> None:
    await asyncio.sleep(delay)
    user = User()
    # The next one of the same identity pushes it out; the library would then try for a minute.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(5):
            await user.join(url, token, microphone=False)
    await asyncio.sleep(seconds)
    await user.leave()


async def main(url: str, token: str, seconds: float, count: int) -> None:
    await asyncio.gather(*(visit(url, token, i * 0.05, seconds) for i in range(count)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
    os._exit(0)  # before the client finds something to end it for
