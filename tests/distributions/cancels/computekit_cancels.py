"""A plugin whose import ends as that of an asynchronous task does."""

import asyncio

raise asyncio.CancelledError
