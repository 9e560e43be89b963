"""Building blocks on asyncio: watermarks, background threads, prefetching, periodic tasks."""
