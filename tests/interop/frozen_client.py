"""A client that opens streams and says so; then somebody freezes it. Run: frozen_client TARGET ADMIN TOPIC COUNT."""

import asyncio
import sys

from interop.raw import SHARED, Raw


async def main(target: str, admin: str, topic: str, count: int) -> None:
    streams = [await Raw(target, admin).consume(topic, "storm", f"frozen-{number}", SHARED) for number in range(count)]
    await asyncio.wait([asyncio.ensure_future(stream.next()) for stream in streams], return_when="FIRST_COMPLETED")
    print("open", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
